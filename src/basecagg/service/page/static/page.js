"use strict";
// Fills the page from /status once a second. Everything goes in as text, never as HTML.
const byId = (id) => document.getElementById(id);
const text = (id, value) => { byId(id).textContent = value; };

function element(tag, content, className) {
  const made = document.createElement(tag);
  if (content !== undefined) made.textContent = content;
  if (className) made.className = className;
  return made;
}

function amount(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  while (bytes >= 1000 && index < units.length - 1) { bytes /= 1000; index += 1; }
  return `${bytes.toFixed(index ? 1 : 0)}\u00a0${units[index]}`;
}

function duration(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${seconds} s`;
}

function histogram(ages) {
  const counts = new Map();
  for (const age of ages) counts.set(age, (counts.get(age) ?? 0) + 1);
  return [...counts].sort((a, b) => a[0] - b[0]).map(([age, count]) => `${count} × τ=${age}`).join(", ");
}

function recovery(entry) {
  const row = element("tr");
  row.append(element("td", entry.version), element("td", entry.reason ? `${entry.outcome}: ${entry.reason}` : entry.outcome, entry.outcome));
  for (const value of [entry.endorsements, entry.answers, entry.corrected]) row.append(element("td", value, "n"));
  const seconds = Object.values(entry.seconds).reduce((sum, value) => sum + value, 0);
  row.append(element("td", histogram(entry.staleness)), element("td", seconds.toFixed(2), "n"));
  return row;
}

function fill(id, children) {
  if (children.length) byId(id).replaceChildren(...children);
}

function pairs(id, values) {
  fill(id, Object.entries(values).flatMap(([key, value]) => [element("dt", key), element("dd", value)]));
}

function person(entry) {
  const item = element("li");
  item.append(element("code", entry.who), ` ${entry.role === "both" ? "" : entry.role} ${entry.seconds} s`);
  return item;
}

function showEpoch(epoch) {
  text("version", epoch.version);
  const clear = epoch.protection === "none";
  byId("clear").hidden = !clear;
  const holders = `N\u00a0=\u00a0${epoch.N}, U\u00a0=\u00a0${epoch.U}, T\u00a0=\u00a0${epoch.T}, D\u00a0=\u00a0${epoch.D}, `;
  const trust = clear ? "protection none" : `${epoch.consistency}, ${epoch.correctness}`;
  text("parameters", `epoch\u00a0${epoch.number}, ${clear ? "" : holders}d\u00a0=\u00a0${epoch.d.toLocaleString("en")}, ${trust}`);
  text("buffer", `${epoch.waiting} of ${epoch.K}`);
  byId("fill").style.width = `${Math.min(100, 100 * epoch.waiting / epoch.K)}%`;
  text("opening", epoch.opening
    ? `opening: ${epoch.opening.endorsed}/${epoch.quorum} endorsed, ${epoch.opening.answered}/${epoch.needed} answered`
    : histogram(epoch.staleness));
  pairs("refusals", epoch.refusals);
}

function showScores(scores) {
  text("untested", scores.length ? "" : "serve --evaluate shows it");
  if (!scores.length) return;
  text("score", `${(100 * scores[scores.length - 1][1]).toFixed(1)} %`);
  const last = Math.max(1, scores.length - 1);
  const points = scores.map(([, score], index) => `${100 * index / last},${27 - 26 * Math.max(0, Math.min(1, score))}`);
  byId("curve").firstElementChild.setAttribute("points", points.join(" "));
}

function show(status) {
  text("federation", status.federation);
  document.title = `${status.federation} · basecagg`;
  text("phase", status.phase);
  byId("phase").className = `badge ${status.phase === "open" ? "good" : ""}`;
  text("online", status.online.length);
  text("members", `${status.members} members${status.pending ? `, ${status.pending} wait for you` : ""}`);
  text("opened", status.opened);
  text("lost", `${status.burned} burned, ${status.corrected} answers corrected`);
  text("traffic", amount(status.traffic.in + status.traffic.out));
  text("uptime", `${amount(status.traffic.in)} in, ${amount(status.traffic.out)} out, up ${duration(status.uptime)}`);
  fill("recoveries", status.recoveries.map(recovery));
  fill("people", status.online.map(person));
  pairs("requests", status.requests);
  showScores(status.scores);
  if (status.epoch) showEpoch(status.epoch);
}

async function refresh() {
  const link = byId("link");
  try {
    const reply = await fetch("/status", { cache: "no-store" });
    if (reply.status === 401) { location.assign("/login"); return; }
    if (!reply.ok) throw new Error(String(reply.status));
    show(await reply.json());
    link.textContent = "live";
    link.className = "badge good";
  } catch (error) {
    link.textContent = "no answer";
    link.className = "badge bad";
  }
  setTimeout(refresh, 1000);
}

refresh();
