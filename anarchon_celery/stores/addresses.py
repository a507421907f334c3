"""The URLs of a Redis store: which servers they name, what the client is told, how they may be shown.

==================================================  =============================================
``redis://user:password@host:6379/0``               one server; ``rediss://`` with TLS
``valkey://…``, ``valkeys://…``                     the same
``redis+socket:///path?virtual_host=0``             a Unix socket, as Celery writes it
``unix:///path?db=0``                               the same, as redis-py does
``sentinel://host;sentinel://host/0?master_name=…``  whom the sentinels call the master
``redis+cluster://host:7000,host:7001``             a cluster; ``rediss+cluster://`` with TLS
==================================================  =============================================

Several hosts may be written with commas, or as several URLs with semicolons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from redis.connection import parse_url

from ..errors import StoreUnusable
from .options import A_DICT, A_PATH, ESCAPED, NO_PORT, SECONDS, WHOLE, wrong_in_query

#: What a URL may ask of the client's connections. The rest is Celery's, such as ``visibility_timeout``.
_OF_THE_CLIENT = ("username", "password", "client_name", "socket_", "ssl")

#: What a URL of each form looks like when it is right.
_RIGHT = {
    "server": "{}://{}host:6379/0",
    "socket": "{}:///path?virtual_host=0",
    "sentinel": "{0}://{1}host:26379;{0}://host2:26379/0?master_name=mymaster",
    "cluster": "{}://{}host:7000,host2:7000",
}

#: What may follow the name of the server in a scheme, after a plus.
_WAYS = ("socket", "cluster")

#: What the values of options have to be which the client looks at when it connects, or not at all.
RIGHTS = {
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout"), SECONDS),
    **dict.fromkeys(("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"), A_PATH),
    **dict.fromkeys(("db", "max_connections", "min_other_sentinels"), WHOLE),
    **dict.fromkeys(("socket_keepalive_options", "sentinel_kwargs"), A_DICT),
}

#: Where one URL of several ends.
_BETWEEN = r";(?=[\w+.-]+://)"

Host = tuple[str, int]


class _Wrong(ValueError):
    """What is wrong with a URL, in words that show no part of it."""


class _WrongOption(_Wrong):
    """An option in it: name, value, and what would be right."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the store is, and how to get there."""

    form: str  #: ``server``, ``socket``, ``sentinel`` or ``cluster``
    hosts: tuple[Host, ...]  #: the servers, or the sentinels; none for a socket
    path: str  #: of the socket
    db: int
    shown: str  #: without passwords
    settings: dict[str, Any] = field(repr=False)  #: what the URL asks of the client, login included


def address_of(url: str, options: Mapping[str, Any] | None = None) -> Address:
    """Read a URL; what ``options`` say counts before what it says.

    Raises:
        StoreUnusable: One line. No part of the URL but an option is shown: it may be one of a password.
    """
    scheme = url.partition(":")[0].lower()
    base, _, way = scheme.partition("+")
    form = {"unix": "socket", "sentinel": "sentinel"}.get(base, way or "server")
    if way not in ("", *_WAYS) or (way and base in ("unix", "sentinel")):
        ways = "" if base in ("unix", "sentinel") else f", {base}+socket:// or {base}+cluster://"
        raise StoreUnusable(f"no store for {scheme!r}: {base}:// is right{ways}")
    try:
        return _read(url, scheme, form, options or {})
    except ValueError as reason:
        why = _why(url, scheme, form, reason)
        raise StoreUnusable(f"the {scheme} URL of the store cannot be read: {why}") from None


def _why(url: str, scheme: str, form: str, reason: ValueError) -> str:
    """Say what is wrong; where an @ stands behind the host, what looked like the host was of a password."""
    login = ":password@" if "@" in url else ""
    is_torn = any(re.search("//[^/?#]*[/?#].*@", one) for one in re.split(_BETWEEN, url))
    right = f"{_RIGHT[form].format(scheme, login)} is right"
    if isinstance(reason, _Wrong) and not is_torn:
        return str(reason) if isinstance(reason, _WrongOption) else f"{reason}; {right}"
    return f"{right}, {ESCAPED}" if login else right


def _read(url: str, scheme: str, form: str, options: Mapping[str, Any]) -> Address:
    several = form in ("sentinel", "cluster")
    urls = (
        [urlsplit(one.strip()) for one in re.split(_BETWEEN, url)] if several else [urlsplit(url)]
    )
    if any(one.fragment for one in urls):
        raise _Wrong("a # has no meaning there")
    if any(one.scheme != scheme for one in urls):
        raise _Wrong(f"each of several begins with {scheme}://")
    settings = _settings(query := _query(urls))
    hosts: list[Host] = []
    for one in urls:
        for netloc in one.netloc.split(",") if several else [one.netloc]:
            hosts.append(_host(netloc, 26379 if form == "sentinel" else 6379, settings))
    if scheme.partition("+")[0] in ("rediss", "valkeys"):
        settings.setdefault("ssl", True)
    _lay_over(settings, options)
    if form == "socket":
        return _socket(urls[0], scheme, query, settings)
    db = _db([query.get("db", ""), *(unquote(one.path).strip("/") for one in urls)])
    if form == "cluster" and db:
        raise _Wrong("a cluster has no database but 0")
    return Address(form, tuple(hosts), "", db, _shown(scheme, form, hosts, db, settings), settings)


def _query(urls: list[SplitResult]) -> dict[str, str]:
    query: dict[str, str] = {}
    for one in reversed(urls):  # where they differ, the first one that says something counts, as for Celery
        try:
            query.update(parse_qsl(one.query, strict_parsing=bool(one.query)))
        except ValueError:
            raise _Wrong("what stands behind the ? is name=value, with & between several") from None
    return query


def _host(netloc: str, port: int, settings: dict[str, Any]) -> Host:
    """Read ``user:password@host:port``; the first login that is given is the one of all."""
    parts = urlsplit(f"//{netloc}")
    if "," in (parts.hostname or ""):
        raise _Wrong("several servers are for redis+cluster:// and sentinel://")
    for name in ("username", "password"):
        if given := getattr(parts, name):
            settings.setdefault(name, unquote(given))
    try:
        return unquote(parts.hostname or "localhost"), parts.port or port
    except ValueError:
        raise _Wrong(NO_PORT) from None


def _settings(query: Mapping[str, str]) -> dict[str, Any]:
    """Return what a query asks of the client, each value of its type; what is for the sentinels apart."""
    wanted: dict[str, str] = {}
    sentinel: dict[str, str] = {}
    for name, value in query.items():
        if name.removeprefix("sentinel_").startswith(_OF_THE_CLIENT):
            value = value.lower().removeprefix("cert_") if name.endswith("ssl_cert_reqs") else value
            (sentinel if name.startswith("sentinel_") else wanted)[name.removeprefix("sentinel_")] = value
    settings: dict[str, Any] = _typed(wanted)
    if sentinel:
        settings["sentinel_kwargs"] = _typed(sentinel, "sentinel_")
    if master := query.get("master_name"):
        settings["master_name"] = master
    return settings


def _typed(wanted: Mapping[str, str], within: str = "") -> dict[str, Any]:
    # The client knows the types; older ones would decode a text once too often.
    typed = {name: _parsed(name, value, within) for name, value in wanted.items()}
    if "ssl" in wanted:
        typed["ssl"] = wanted["ssl"].lower() in ("true", "1", "yes")
    if (wrong := wrong_in_query(wanted, typed, RIGHTS)) is not None:
        raise _WrongOption(f"{within}{wrong}")
    return {name: it if isinstance(typed[name], str) else typed[name] for name, it in wanted.items()}


def _parsed(name: str, value: str, within: str) -> Any:
    """Return a value as the client reads it; as it is where that cannot, and what is right is known."""
    try:
        settings = {**parse_url(f"redis://h?{urlencode({name: value})}")}
    except (TypeError, ValueError):
        if name in RIGHTS:
            return value
        raise _WrongOption(f"{within}{name}={value!r}: the Redis client cannot read that") from None
    return settings[name]


def _lay_over(settings: dict[str, Any], options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name == "sentinel_kwargs":
            value = {**settings.get(name, {}), **(value or {})}
        settings[name] = value


def _socket(url: SplitResult, scheme: str, query: Mapping[str, str], settings: dict[str, Any]) -> Address:
    path = unquote(url.path)
    if url.hostname or not path.strip("/"):
        raise ValueError
    key = "db" if scheme == "unix" else "virtual_host"
    db = _db([query.get("db", ""), query.get("virtual_host", "")])
    return Address("socket", (), path, db, f"{scheme}://{path}?{key}={db}", settings)


def _db(given: list[str]) -> int:
    """Return the number of the database: the first that is given, else 0."""
    text = next((text for text in given if text.strip("/")), "0").strip("/")
    if not re.fullmatch(r"(?a)\d{1,9}", text):
        raise _Wrong("the database is no number from 0 on")
    return int(text)


def _shown(scheme: str, form: str, hosts: list[Host], db: int, settings: Mapping[str, Any]) -> str:
    names = [f"{f'[{host}]' if ':' in host else quote(host, safe='%')}:{port}" for host, port in hosts]
    if form == "sentinel":
        master = settings.get("master_name")
        named = f"?master_name={quote(str(master), safe='')}" if master else ""
        return ";".join(f"{scheme}://{name}" for name in names) + f"/{db}{named}"
    return f"{scheme}://{','.join(names)}" + ("" if form == "cluster" else f"/{db}")
