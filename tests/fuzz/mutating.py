"""Changes of valid files: of bytes, of lines, of the values in JSON. All is drawn from one generator, so it repeats."""

import copy
import json
from random import Random
from typing import Any

# What parsers, converters and people get wrong.
TOKENS = [
    b"NaN", b"nan", b"inf", b"-Infinity", b"1e999", b"-1e308", b"1e-400", b"0x7fffffff", b"99999999999999999999",
    b"9" * 5000, b"-1", b"0", b"true", b"null", b'"', b'""', b"'", b",", b"\t", b"\n", b"\r", b"\r\n", b"\x00", b"\xff",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"[" * 3000, b'{"a":' * 3000, b"]", b"}", b"\\",
    b"\\ud800", b"\\u0000", b"../", b"/etc/passwd", b"~root/", b"$HOME", b"${X}", b"<script>", b"\x1b[2J", b"=1+1",
    b"a" * 140_000, b" ", b"\xc2\xa0", b"#", b"=", b"[[", b".", b"..", b"%s", b"{}", b"-", b"+", b"e", b"E5",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "",
    "a", "7", "NaN", "../x", "/etc", "a\x00b", "\ud800", "x" * 5000, [], [[]], {}, {"a": 1}, [None], ["a", 1], [1] * 50,
]  # fmt: skip


def mutated(content: bytes, draw: Random, *, as_json: bool = False) -> bytes:
    """`content` after one to four changes; with `as_json` most of them are of values of JSON documents."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        change = _of_values if as_json and draw.random() < 0.6 else draw.choice(_CHANGES)
        content = change(content, draw)
    return content


def _flip(content: bytes, draw: Random) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _insert(content: bytes, draw: Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice(TOKENS) + content[place:]


def _replace(content: bytes, draw: Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice(TOKENS) + content[place + draw.randrange(1, 12) :]


def _delete(content: bytes, draw: Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + content[place + draw.choice((1, 2, 5, 30, 200)) :]


def _cut(content: bytes, draw: Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _double(content: bytes, draw: Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    part = content[place : place + draw.choice((1, 10, 100))]
    return content[:place] + part * draw.choice((2, 3, 50)) + content[place + len(part) :]


def _lines(content: bytes, draw: Random) -> bytes:
    """Drop, double, swap or join lines."""
    lines = content.split(b"\n")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    elif kind == 2:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines[one] += lines[other]
    return b"\n".join(lines)


def _number(content: bytes, draw: Random) -> bytes:
    """Another digit in place of one."""
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return content
    place = draw.choice(places)
    return content[:place] + b"%d" % draw.randrange(10) + content[place + 1 :]


_CHANGES = (_flip, _insert, _replace, _delete, _cut, _double, _lines, _number)


def _of_values(content: bytes, draw: Random) -> bytes:
    """One value, or one key, of a JSON document, or of one of its lines, is another one."""
    lines = content.split(b"\n") if content.count(b"\n{") else [content]
    place = draw.randrange(len(lines))
    try:
        document = json.loads(lines[place])
    except (ValueError, RecursionError):
        return _flip(content, draw)
    lines[place] = json.dumps(_with_change(document, draw)).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _with_change(document: Any, draw: Random) -> Any:
    holder, key, value = None, None, document
    while isinstance(value, (dict, list)) and value and (holder is None or draw.random() < 0.8):
        holder = value
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = holder[key]
    if holder is None:
        return copy.deepcopy(draw.choice(VALUES))
    kind = draw.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[draw.choice(("name", "layer", "", "x" * 300))] = holder.pop(key)
    elif kind == 2 and isinstance(value, (int, float)) and not isinstance(value, bool):
        holder[key] = value * draw.choice((-1, 2, 10**6)) + draw.choice((0, 1, 0.5) if abs(value) < 1e9 else (0, 1))
    else:
        holder[key] = copy.deepcopy(draw.choice(VALUES))
    return document
