"""What must not be shown: passwords and signatures in addresses, tokens in headers."""

import re
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

__all__ = ["Secrets", "origin", "public_url"]

_QUERY = re.compile(r"\?[^\s\"'<>]*=[^\s\"'<>]*")
_SHORTEST = 4


def public_url(url: str) -> str:
    """The address without user, password, query and fragment: what messages show.

    >>> public_url("https://me:secret@host:8080/a/b.parquet?sig=1234")
    'https://host:8080/a/b.parquet'
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def origin(url: str) -> tuple[str, str]:
    """Scheme and host with port: credentials for one origin are sent to no other."""
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.rpartition("@")[2].lower()


class Secrets:
    """Texts that were part of some credential; `scrub` takes them out of what others wrote."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def add(self, text: str) -> None:
        if len(text) >= _SHORTEST:  # a shorter one would tear ordinary words apart, and protects nothing
            self._texts |= {text, unquote(text)}

    def add_url(self, url: str) -> None:
        """Remember the user, the password and every value of the query."""
        parts = urlsplit(url)
        for text in parts.netloc.rpartition("@")[0].split(":"):
            self.add(text)
        for pair in parts.query.split("&"):
            self.add(pair.partition("=")[2])
        for _, value in parse_qsl(parts.query):
            self.add(value)

    def scrub(self, text: str) -> str:
        """The text with every secret, and the query of every address, replaced by an ellipsis."""
        for secret in sorted(self._texts.copy(), key=len, reverse=True):
            text = text.replace(secret, "…")
        return _QUERY.sub("?…", text)
