"""Masks from keys once more, in plain Python integers: from the definitions, with nothing of basecagg.

The transform is the textbook's recursion over even and odd places, on values in their natural order;
words, bits and blocks are put in order by hand.
"""

from itertools import islice

from oracle_rounding import derived, field_elements, keystream_words

N, BLOCKS = 2048, 16
GROUP, CHUNK = N * BLOCKS, 8 * N * BLOCKS
NARROW, WIDE = 16760833, 2**32 - 12287


def psi(q):
    """The first g^((q−1)/2n) whose n-th power is −1."""
    return next(r for g in range(2, 99) if pow(r := pow(g, (q - 1) // (2 * N), q), N, q) == q - 1)


def by_definition(values, k, q):
    """Coefficient k: Σ_j v_j·ψ^(−(2·rev(j) + 1)·k)/n."""
    root = psi(q)
    terms = (v * pow(root, -(2 * reverse(j) + 1) * k, q) for j, v in enumerate(values))
    return sum(terms) * pow(N, -1, q) % q


def reverse(j):
    """The eleven bits of j from the other end."""
    return sum((j >> bit & 1) << (10 - bit) for bit in range(11))


def inverse(values, q):
    """All coefficients: c_k = ψ^−k/n · Σ_i v at ψ^(2i+1) · ω^(−ik), with ω = ψ²."""
    root = pow(psi(q), -1, q)
    natural = [values[reverse(i)] for i in range(N)]
    sums = fourier(natural, root * root % q, q)
    share = pow(N, -1, q)
    return [x * pow(root, k, q) * share % q for k, x in enumerate(sums)]


def fourier(x, w, q):
    """Σ_i x_i·w^(ik) for every k."""
    if len(x) == 1:
        return x
    even, odd = (fourier(x[i::2], w * w % q, q) for i in (0, 1))
    power, turned = 1, []
    for y in odd:
        turned.append(y * power % q)
        power = power * w % q
    pairs = list(zip(even, turned, strict=True))
    return [(a + b) % q for a, b in pairs] + [(a - b) % q for a, b in pairs]


def forward(coefficients, q):
    """The values of a polynomial at ψ^(2·rev(j) + 1)."""
    root = psi(q)
    turned = [c * pow(root, k, q) % q for k, c in enumerate(coefficients)]
    natural = fourier(turned, root * root % q, q)
    return [natural[reverse(j)] for j in range(N)]


def product(public, key, q):
    """INTT(a ⊙ ŝ) of one group: word 16·k + l is coefficient k of block l."""
    out = [0] * GROUP
    for block in range(BLOCKS):
        values = [a * s % q for a, s in zip(public[block::BLOCKS], key, strict=True)]
        out[block::BLOCKS] = inverse(values, q)
    return out


def key_of(seed, q):
    return list(islice(field_elements(derived(seed, "key"), q), N))


def public_words(epoch, q, chunk, number):
    seed = derived(epoch, f"public a/{N}/{q}/{chunk}")
    return list(islice(field_elements(seed, q), number))


def bare_mask(key, epoch, q, first_chunk, size):
    """INTT(a ⊙ ŝ), from the first word of a chunk on and not beyond it."""
    groups = -(-size // GROUP)
    public = public_words(epoch, q, first_chunk, groups * GROUP)
    pieces = [public[g * GROUP : (g + 1) * GROUP] for g in range(groups)]
    return [word for piece in pieces for word in product(piece, key, q)][:size]


def errors(fresh, size):
    coins = islice(keystream_words(derived(fresh, "errors")), size)
    return [word.bit_count() - 16 for word in coins]


def mask(seed, fresh, epoch, q, size):
    """What hides an update."""
    bare = bare_mask(key_of(seed, q), epoch, q, 0, size)
    return [(m + e) % q for m, e in zip(bare, errors(fresh, size), strict=True)]


def share_of(seed, q, holder, threshold, colluders):
    """What holder j gets of a key: the value at j + 1 of the polynomials whose coefficients are the rows."""
    pieces = threshold - colluders
    length = -(-(N + 2) // pieces)
    shared = [*key_of(seed, q), *[0] * (pieces * length - N)]
    padding = list(islice(field_elements(derived(seed, "noise"), q), colluders * length))
    words = shared + padding
    rows = [words[row * length : (row + 1) * length] for row in range(threshold)]
    powers = [pow(holder + 1, u, q) for u in range(threshold)]
    return [
        sum(p * x for p, x in zip(powers, column, strict=True)) % q
        for column in zip(*rows, strict=True)
    ]


def packed(words, q):
    """Each word in as many bytes as q − 1 takes, the lowest first."""
    return b"".join(word.to_bytes(3 if q < 2**24 else 4, "little") for word in words)
