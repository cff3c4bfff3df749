"""JSON objects, one a line: where the values of wanted keys lie, and what a string says once its escapes are resolved.

`scan` is a strict automaton: it accepts what `json.loads` accepts, and nothing else (except that numbers of more than
4,000 digits and nesting beyond 256 levels are refused: there `json.loads` has limits that differ from place to place).
It can be fed a line piece by piece, so that a line of any length is gone through in bounded memory; it stops in front
of what it cannot tell yet, and takes that up again once more bytes are there. Whether bytes above 127 are UTF-8 is for
the caller to find out.

    {"id": 7, "text": "a\\nb"}      keys id, text: found[0] = (7, 8), found[1] = (18, 24)
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.json_strings import (
    BACKSLASH,
    BACKSLASHES,
    HIGHS,
    QUOTE,
    QUOTES,
    SIMPLE,
    SPACES,
    first_flagged,
    has_backslash,
    hex4,
    load_word,
    unescape,
    zero_flags,
)

# What `scan` says: more bytes are wanted; the line has ended as it should, or was blank; it is no JSON object.
PAUSED, COMPLETE, BLANK, BAD, TOO_DEEP, LONG_TOKEN, NOT_OBJECT = range(7)

# What `scan_lines` says of a line, besides BLANK, TOO_DEEP and LONG_TOKEN: the text lies in the line as it is, or
# unescaped in `out`, or is no string or not there; or somebody else must look at the line who can tell what is wrong.
RAW, UNESCAPED, OTHER, ASK = 16, 17, 18, 19
CHECK = 32
"""Added where the line has bytes above 127 outside the text."""

MAX_DEPTH = 256
_LONGEST_TOKEN = 4000

# Words of the state between two calls of `scan`.
_MODE, _DEPTH, _WANTED, _VALUE_START, _NAME_LENGTH, _NAME_ESCAPED, _HIGH = range(7)
_STACK = 7
STATE_WORDS = _STACK + MAX_DEPTH

# What comes next.
_BEGIN, _VALUE, _FIRST_ITEM, _FIRST_KEY, _KEY, _COLON, _AFTER, _STRING, _NAME, _END = range(10)

# Words of a row of `scan_lines`; from KEYS on two for every wanted key.
LINE_START, LINE_STOP, LINE_STATUS, KEYS = range(4)

_NEWLINE = 10
_TRUE, _FALSE, _NULL = (np.frombuffer(word, np.uint8) for word in (b"true", b"false", b"null"))
_NAN, _INFINITY = np.frombuffer(b"NaN", np.uint8), np.frombuffer(b"Infinity", np.uint8)
_U = np.uint64


@inlined
def _is_word(data, start, stop, word):
    if stop - start != word.size:
        return False
    for i in range(word.size):
        if data[start + i] != word[i]:
            return False
    return True


@inlined
def _is_token(data, start, stop):
    """Whether these bytes are a number or one of the words of JSON (NaN and the infinities included)."""
    for word in (_TRUE, _FALSE, _NULL, _NAN):
        if _is_word(data, start, stop, word):
            return True
    i = start
    if data[i] == 45:
        i += 1
    if _is_word(data, i, stop, _INFINITY):
        return True
    if i >= stop or not 48 <= data[i] <= 57:
        return False
    if data[i] == 48:
        i += 1
    else:
        while i < stop and 48 <= data[i] <= 57:
            i += 1
    if i < stop and data[i] == 46:
        i += 1
        if i >= stop or not 48 <= data[i] <= 57:
            return False
        while i < stop and 48 <= data[i] <= 57:
            i += 1
    if i < stop and (data[i] == 101 or data[i] == 69):
        i += 1
        if i < stop and (data[i] == 43 or data[i] == 45):
            i += 1
        if i >= stop or not 48 <= data[i] <= 57:
            return False
        while i < stop and 48 <= data[i] <= 57:
            i += 1
    return i == stop


@inlined
def _start(state, found):
    state[:_STACK] = 0
    state[_WANTED] = -1
    found[:] = -1


@inlined
def _match(state, name, keys, key_offsets, found):
    """The number of the wanted key that has just been read, or -1."""
    length = state[_NAME_LENGTH]
    if length > name.size:
        return -1
    if state[_NAME_ESCAPED] != 0:
        used, length = unescape(name.copy(), 0, length, True, name, 0)
        if used < 0:
            return -1
    for key in range(key_offsets.size - 1):
        if key_offsets[key + 1] - key_offsets[key] != length:
            continue
        same = True
        for i in range(length):
            if keys[key_offsets[key] + i] != name[i]:
                same = False
                break
        if same:
            if found[key, 0] >= 0 and key == 0:
                state[_HIGH] = 128  # the text before is not looked at any more, so whoever checks must look at the line
            return key
    return -1


@kernel
def scan(data, start, stop, final, origin, state, name, keys, key_offsets, found):
    """Go on with a line through data[start:stop), to its end at a newline, or at `stop` where that is `final`.

    Returns (where it stopped, what it is: COMPLETE, BLANK, PAUSED or what is wrong). found[k] becomes the place of the
    value of wanted key k in the line: [start, stop) relative to data, plus `origin`; the last one where a key is there
    more than once. Key k is keys[key_offsets[k]:key_offsets[k + 1]]; `name` has room for six times the longest.
    """
    i = start
    mode, depth = state[_MODE], state[_DEPTH]
    source = data.ctypes.data
    while True:
        if mode == _STRING or mode == _NAME:
            begin, high = i, _U(0)
            c = np.int64(0)
            while i + 8 <= stop:
                word = load_word(source + i)
                special = zero_flags(word ^ QUOTES) | zero_flags(word ^ BACKSLASHES) | ((word - SPACES) & ~word & HIGHS)
                if special != 0:
                    first = first_flagged(special)
                    high |= word & ((_U(1) << _U(8 * first)) - _U(1))
                    i += first
                    break
                high |= word
                i += 8
            while i < stop:
                c = np.int64(data[i])
                if c == QUOTE or c == BACKSLASH or c < 32:
                    break
                high |= _U(c)
                i += 1
            if high & HIGHS != 0 and not (mode == _STRING and depth == 1 and state[_WANTED] == 0):
                state[_HIGH] = 128
            escape = 0
            if i < stop and c == BACKSLASH:
                escape = -1
                if i + 1 < stop:
                    e = data[i + 1]
                    if e == 117:
                        if i + 6 <= stop:
                            if hex4(data, i + 2) < 0:
                                return i, BAD
                            escape = 6
                    elif SIMPLE[e] != 0:
                        escape = 2
                    else:
                        return i, BAD
            end = i + max(escape, 0)
            if mode == _NAME and depth == 1:
                for j in range(begin, end):
                    if state[_NAME_LENGTH] < name.size:
                        name[state[_NAME_LENGTH]] = data[j]
                    state[_NAME_LENGTH] += 1
            if i == stop or escape < 0:
                if final:
                    return i, BAD
                state[_MODE], state[_DEPTH] = mode, depth
                return i, PAUSED
            if escape > 0:
                if mode == _NAME:
                    state[_NAME_ESCAPED] = 1
                i = end
                continue
            if c != QUOTE:
                return i, BAD
            i += 1
            if mode == _NAME:
                if depth == 1:
                    state[_WANTED] = _match(state, name, keys, key_offsets, found)
                mode = _COLON
            else:
                mode = _AFTER
                if depth == 1 and state[_WANTED] >= 0:
                    found[state[_WANTED], 0] = state[_VALUE_START]
                    found[state[_WANTED], 1] = origin + i
            continue
        while i < stop and (data[i] == 32 or data[i] == 9 or data[i] == 13):
            i += 1
        if i == stop or data[i] == _NEWLINE:
            if i == stop and not final:
                state[_MODE], state[_DEPTH] = mode, depth
                return i, PAUSED
            if mode == _END:
                return i, COMPLETE
            return i, BLANK if mode == _BEGIN else BAD
        c = np.int64(data[i])
        if mode == _AFTER:
            if c == 44:
                mode = _KEY if state[_STACK + depth - 1] == 123 else _VALUE
            elif (c == 125 or c == 93) and state[_STACK + depth - 1] == c - 2:
                depth -= 1
                mode = _AFTER if depth > 0 else _END
                if depth == 1 and state[_WANTED] >= 0:
                    found[state[_WANTED], 0] = state[_VALUE_START]
                    found[state[_WANTED], 1] = origin + i + 1
            else:
                return i, BAD
            i += 1
        elif mode == _COLON:
            if c != 58:
                return i, BAD
            mode = _VALUE
            i += 1
        elif mode == _KEY or (mode == _FIRST_KEY and c != 125):
            if c != QUOTE:
                return i, BAD
            mode = _NAME
            state[_NAME_LENGTH] = 0
            state[_NAME_ESCAPED] = 0
            i += 1
        elif mode == _FIRST_KEY or (mode == _FIRST_ITEM and c == 93):
            depth -= 1
            i += 1
            mode = _AFTER if depth > 0 else _END
            if depth == 1 and state[_WANTED] >= 0:
                found[state[_WANTED], 0] = state[_VALUE_START]
                found[state[_WANTED], 1] = origin + i
        elif mode == _END:
            return i, BAD
        else:
            if mode == _BEGIN and c != 123:
                return i, NOT_OBJECT
            if depth == 1:
                state[_VALUE_START] = origin + i
            if c == QUOTE:
                mode = _STRING
                i += 1
            elif c == 123 or c == 91:
                if depth == MAX_DEPTH:
                    return i, TOO_DEEP
                state[_STACK + depth] = c
                depth += 1
                mode = _FIRST_KEY if c == 123 else _FIRST_ITEM
                i += 1
            else:
                j = i
                while j < stop and (
                    48 <= data[j] <= 57
                    or 97 <= data[j] <= 122
                    or 65 <= data[j] <= 90
                    or data[j] == 43
                    or data[j] == 45
                    or data[j] == 46
                ):
                    j += 1
                    if j - i > _LONGEST_TOKEN:
                        return i, LONG_TOKEN
                if j == stop and not final:
                    state[_MODE], state[_DEPTH] = mode, depth
                    return i, PAUSED
                if j == i or not _is_token(data, i, j):
                    return i, BAD
                i = j
                mode = _AFTER
                if depth == 1 and state[_WANTED] >= 0:
                    found[state[_WANTED], 0] = state[_VALUE_START]
                    found[state[_WANTED], 1] = origin + i


@kernel
def start_line(state, found):
    """Make ready for the first bytes of a line."""
    _start(state, found)


@kernel
def scan_lines(data, start, stop, state, name, keys, key_offsets, rows, out):
    """What the lines in data[start:stop) are, the last of which ends at `stop`, with or without a newline.

    Key 0 is the text's. Each line has a row: [LINE_START, LINE_STOP), LINE_STATUS, then [start, stop) of every key's
    value, -1 where it has none. Of the text it is what lies between the quotes: in `data` where the status is RAW, in
    `out`, which is as long as `data`, where UNESCAPED; where it is no string (OTHER), it is as of the others. ASK
    leaves the line to somebody who can say what is wrong with it.

    Returns how many rows there are, and where the next line begins: before `stop` if there are more lines than rows.
    """
    found = np.empty((key_offsets.size - 1, 2), np.int64)
    count, written, i = 0, 0, start
    while i < stop and count < rows.shape[0]:
        begin = i
        _start(state, found)
        i, status = scan(data, i, stop, True, 0, state, name, keys, key_offsets, found)
        while i < stop and data[i] != _NEWLINE:
            i += 1
        if status == COMPLETE:
            text_start, text_stop = found[0, 0], found[0, 1]
            status = OTHER
            if text_start >= 0 and data[text_start] == QUOTE:
                status = RAW
                found[0, 0] = text_start + 1
                found[0, 1] = text_stop - 1
                if has_backslash(data, text_start + 1, text_stop - 1):
                    used, end = unescape(data, text_start + 1, text_stop - 1, True, out, written)
                    status = ASK if used < 0 else UNESCAPED
                    found[0, 0] = written
                    found[0, 1] = end
                    written = end
            if status != ASK and state[_HIGH] != 0:
                status |= CHECK
        elif status != BLANK and status != TOO_DEEP and status != LONG_TOKEN:
            status = ASK
        rows[count, LINE_START] = begin
        rows[count, LINE_STOP] = i
        rows[count, LINE_STATUS] = status
        for key in range(key_offsets.size - 1):
            rows[count, KEYS + 2 * key] = found[key, 0]
            rows[count, KEYS + 2 * key + 1] = found[key, 1]
        count += 1
        i += 1
    return count, min(i, stop)
