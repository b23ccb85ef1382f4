"""Changes of valid files, of bytes and lines. All is drawn from one generator, so it repeats."""

from random import Random

# What parsers, converters and people get wrong.
TOKENS = [
    b"NaN", b"inf", b"1e999", b"99999999999999999999", b"-1", b"0", b"true", b"null", b'"', b"'", b",", b"\t", b"\n",
    b"\r\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"[" * 300, b'{"a":', b"]", b"}", b"\\",
    b"\\ud800", b"../", b"/etc/passwd", b"\x1b[2J", b"a" * 14_000, b" ", b"\xc2\xa0", b"#", b"=", b"[[", b"..", b"e",
]  # fmt: skip


def mutated(content: bytes, draw: Random) -> bytes:
    """`content` after one to four changes: a bit flipped, a part replaced, repeated or cut off, or lines mixed."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        place, length = draw.randrange(len(content) + 1), draw.choice((1, 5, 30, 200))
        start, part, rest = content[:place], content[place : place + length], content[place + length :]
        lines = content.split(b"\n")
        one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        lines[one], lines[other] = draw.choice(((lines[other], lines[one]), (lines[one], lines[one])))
        flipped = bytes([part[0] ^ 1 << draw.randrange(8)]) + part[1:] if part else b"\0"
        digits = bytes(draw.choice(b"0123456789") if 48 <= byte <= 57 else byte for byte in part)
        changed = (flipped, draw.choice((*TOKENS, b"")), part * draw.choice((2, 3, 50)), digits)
        content = draw.choice((*(start + new + rest for new in changed), start, b"\n".join(lines)))
    return content
