"""Changes of valid files, of bytes and lines. All is drawn from one generator, so it repeats."""

from random import Random

# What parsers, converters and people get wrong.
TOKENS = [
    b"NaN", b"inf", b"1e999", b"99999999999999999999", b"-1", b"0", b"true", b"null", b'"', b"'", b",", b"\t", b"\n",
    b"\r\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"[" * 300, b'{"a":', b"]", b"}", b"\\",
    b"\\ud800", b"../", b"/etc/passwd", b"\x1b[2J", b"a" * 14_000, b" ", b"\xc2\xa0", b"#", b"=", b"[[", b"..", b"e",
]  # fmt: skip


def mutated(content: bytes, draw: Random) -> bytes:
    """`content` after one to four changes."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        content = draw.choice((_flip, _splice, _cut, _double, _lines, _digit))(content, draw)
    return content


def _flip(content: bytes, draw: Random) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _splice(content: bytes, draw: Random) -> bytes:
    """Insert a token, or nothing, in place of some bytes or none."""
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice((*TOKENS, b"")) + content[place + draw.choice((0, 1, 5, 30, 200)) :]


def _cut(content: bytes, draw: Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _double(content: bytes, draw: Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    part = content[place : place + draw.choice((1, 10, 100))]
    return content[:place] + part * draw.choice((2, 3, 50)) + content[place + len(part) :]


def _lines(content: bytes, draw: Random) -> bytes:
    """Drop, double or swap lines."""
    lines = content.split(b"\n")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(3)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def _digit(content: bytes, draw: Random) -> bytes:
    """Put another digit in place of one."""
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return content
    place = draw.choice(places)
    return content[:place] + b"%d" % draw.randrange(10) + content[place + 1 :]
