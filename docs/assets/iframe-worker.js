// Search in pages that are opened as files. Browsers start no worker from a file, so the search's worker runs in
// a hidden frame instead, with the two functions of a worker that it uses. (mkdocs-material would load such a script
// from elsewhere; it looks for this name.)
class FrameWorker extends EventTarget {
  constructor(address) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    frame.title = "search";
    document.body.append(frame);
    this.inside = frame.contentWindow;
    this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = this.inside.document.createElement("script");
    script.src = address;
    this.ready = new Promise(resolve => script.addEventListener("load", resolve));
    this.inside.document.body.append(script);
  }
  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }
}
if (location.protocol === "file:") window.Worker = FrameWorker;
