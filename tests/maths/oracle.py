"""The field and the code once more, in plain Python integers and by other means: slow, and easy to check.

Nothing here is taken from basecagg. Encoding is Horner's rule, decoding Newton's divided differences,
correction a search through all sets of wrong answers; the points are found by walking through the
field instead of by comparing powers.
"""

from itertools import combinations

PAPER_MODULUS = 2**32 - 5


def weighted_sum(rows, weights, q):
    return [
        sum(w * x for w, x in zip(weights, column, strict=True)) % q
        for column in zip(*rows, strict=True)
    ]


def points(num_holders, q):
    """1…N; in the paper's field g·ζ^k·ω^s: tens of s, for k = 0, ±1, ±7, ±49, ±2 …, for g = 1, 2, …

    Up to 299 holders there is no ζ. A g that is in a coset already is left out.
    """
    if q != PAPER_MODULUS:
        return list(range(1, num_holders + 1))
    eta, zeta = (
        next(r for b in range(2, 99) if (r := pow(b, (q - 1) // n, q)) != 1) for n in (5, 19)
    )
    omega = -eta % q
    sixes = [[a, -a, 7 * a, -7 * a, 49 * a, -49 * a] for a in (1, 2, 4)]
    powers_of_zeta = [0, *sixes[0], *sixes[1], *sixes[2]]
    if num_holders < 300:
        powers_of_zeta = [0]
    coset = [pow(zeta, k, q) * pow(omega, s, q) % q for k in powers_of_zeta for s in range(10)]
    found, g = [], 0
    while len(found) < num_holders:
        g += 1
        if g not in found:
            found += [g * root % q for root in coset]
    return found[:num_holders]


def encode(mask, noise, where, submasks, q):
    """Every holder's share: the polynomials whose coefficients are the sub-masks, then the noise."""
    m = len(mask) // submasks
    rows = [mask[u * m : (u + 1) * m] for u in range(submasks)] + [list(row) for row in noise]
    return [[horner([row[c] for row in rows], x, q) for c in range(m)] for x in where]


def horner(coefficients, x, q):
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % q
    return value


def decode(shares, where, threshold, submasks, q):
    """The mask, from the first `threshold` shares (a dict from holder to share) by holder."""
    holders = sorted(shares)[:threshold]
    xs = [where[h] for h in holders]
    inverses = {(i, j): pow(xs[i] - xs[j], -1, q) for i in range(threshold) for j in range(i)}
    columns = [
        coefficients(xs, [shares[h][c] for h in holders], inverses, q)
        for c in range(len(shares[holders[0]]))
    ]
    return [column[u] for u in range(submasks) for column in columns]


def coefficients(xs, ys, inverses, q):
    """The polynomial through the points (x, y): divided differences, then expanded."""
    differences = list(ys)
    for step in range(1, len(xs)):
        for i in range(len(xs) - 1, step - 1, -1):
            slope = differences[i] - differences[i - 1]
            differences[i] = slope * inverses[i, i - step] % q
    polynomial = [0] * len(xs)
    for difference, x in zip(reversed(differences), reversed(xs), strict=True):
        shifted = [0, *polynomial[:-1]]
        polynomial = [(s - x * p) % q for s, p in zip(shifted, polynomial, strict=True)]
        polynomial[0] = (polynomial[0] + difference) % q
    return polynomial


def correct(shares, where, threshold, submasks, q):
    """The mask and the fewest wrong holders whose removal makes all shares agree; None if too many."""
    for number in range((len(shares) - threshold) // 2 + 1):
        for wrong in combinations(sorted(shares), number):
            trusted = {h: shares[h] for h in shares if h not in wrong}
            rows = decode(trusted, where, threshold, threshold, q)
            again = encode(rows, [], where, threshold, q)
            if all(again[h] == list(trusted[h]) for h in trusted):
                m = len(rows) // threshold
                return rows[: m * submasks], list(wrong)
    return None
