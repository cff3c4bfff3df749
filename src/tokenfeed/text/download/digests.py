"""The checksums that servers send along with a file."""

import base64
import binascii
import re
from collections.abc import Mapping

__all__ = ["read_digests"]

_SHA256_HEX = re.compile(r'"?([0-9a-f]{64})"?')
_FIELD = re.compile(r"\s*(sha-256|md5)\s*=\s*:?([A-Za-z0-9+/=]+):?\s*", re.IGNORECASE)
_NUM_BYTES = {"sha256": 32, "md5": 16}


def read_digests(headers: Mapping[str, str], linked: Mapping[str, str], *, whole: bool) -> dict[str, str]:
    """`{"sha256": hex, "md5": hex}` of the whole file, as far as the headers of an answer tell.

    `whole` says whether the body is the file: Content-MD5 and x-amz-checksum-sha256 are about the body, so a part's say
    nothing about the file. `linked` are the headers of the redirects before, where the Hugging Face hub names the
    SHA-256 of a large file. What cannot be understood (a checksum of checksums, say) is taken for absent.
    """
    found: dict[str, str] = {}
    for header in ("Digest", "Repr-Digest"):  # RFC 3230 and RFC 9530; both are of the file even when a part is sent
        for field in headers.get(header, "").split(","):
            if match := _FIELD.fullmatch(field):
                _add(found, match[1].lower().replace("-", ""), match[2])
    if whole:
        _add(found, "md5", headers.get("Content-MD5", ""))
        _add(found, "sha256", headers.get("x-amz-checksum-sha256", ""))
    if match := _SHA256_HEX.fullmatch(linked.get("x-linked-etag", headers.get("X-Linked-Etag", ""))):
        found["sha256"] = match[1]
    return found


def _add(found: dict[str, str], algorithm: str, encoded: str) -> None:
    try:
        digest = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return
    if len(digest) == _NUM_BYTES[algorithm]:
        found[algorithm] = digest.hex()
