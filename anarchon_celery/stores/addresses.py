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

#: What a URL may ask of the client's connections. The rest is Celery's, such as ``visibility_timeout``.
_OF_THE_CLIENT = ("username", "password", "client_name", "socket_", "ssl")

#: What a URL of each form looks like when it is right.
_RIGHT = {
    "server": "{}://:password@host:6379/0",
    "socket": "{}:///path?virtual_host=0",
    "sentinel": "{0}://:password@host:26379;{0}://host2:26379/0?master_name=mymaster",
    "cluster": "{}://:password@host:7000,host2:7000",
}

#: What may follow the name of the server in a scheme, after a plus.
_WAYS = ("socket", "cluster")

Host = tuple[str, int]


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
        StoreUnusable: One line, in which no part of the URL is shown: it may be one of a password.
    """
    scheme = url.partition(":")[0].lower()
    base, _, way = scheme.partition("+")
    form = {"unix": "socket", "sentinel": "sentinel"}.get(base, way or "server")
    if way not in ("", *_WAYS) or (way and base in ("unix", "sentinel")):
        ways = "" if base in ("unix", "sentinel") else f", {base}+socket:// or {base}+cluster://"
        raise StoreUnusable(f"no store for {scheme!r}: {base}:// is right{ways}")
    try:
        return _read(url, scheme, form, options or {})
    except ValueError:
        raise StoreUnusable(
            f"the {scheme} URL of the store cannot be read: {_RIGHT[form].format(scheme)} is right, "
            "with %40, %2F, … for what is special in the password"
        ) from None


def _read(url: str, scheme: str, form: str, options: Mapping[str, Any]) -> Address:
    several = form in ("sentinel", "cluster")
    urls = (
        [urlsplit(one.strip()) for one in re.split(r";(?=[\w+.-]+://)", url)] if several else [urlsplit(url)]
    )
    if any(one.fragment or one.scheme != scheme for one in urls):
        raise ValueError
    query: dict[str, str] = {}
    for one in reversed(urls):  # where they differ, the first one that says something counts, as for Celery
        query.update(parse_qsl(one.query, strict_parsing=bool(one.query)))
    settings = _settings(query)
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
        raise ValueError
    return Address(form, tuple(hosts), "", db, _shown(scheme, form, hosts, db, settings), settings)


def _host(netloc: str, port: int, settings: dict[str, Any]) -> Host:
    """Read ``user:password@host:port``; the first login that is given is the one of all."""
    parts = urlsplit(f"//{netloc}")
    if "," in (parts.hostname or ""):
        raise ValueError
    for name in ("username", "password"):
        if given := getattr(parts, name):
            settings.setdefault(name, unquote(given))
    return unquote(parts.hostname or "localhost"), parts.port or port


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
        settings["sentinel_kwargs"] = _typed(sentinel)
    if master := query.get("master_name"):
        settings["master_name"] = master
    return settings


def _typed(wanted: Mapping[str, str]) -> dict[str, Any]:
    # The client knows the types; older ones would decode a text once too often.
    typed = {**parse_url(f"redis://h?{urlencode(wanted)}")}
    typed["ssl"] = wanted.get("ssl", "").lower() in ("true", "1", "yes")
    return {name: it if isinstance(typed[name], str) else typed[name] for name, it in wanted.items()}


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
    number = int(next((text for text in given if text.strip("/")), "0").strip("/"))
    if number < 0:
        raise ValueError
    return number


def _shown(scheme: str, form: str, hosts: list[Host], db: int, settings: Mapping[str, Any]) -> str:
    names = [f"{f'[{host}]' if ':' in host else quote(host, safe='%')}:{port}" for host, port in hosts]
    if form == "sentinel":
        master = settings.get("master_name")
        named = f"?master_name={quote(str(master), safe='')}" if master else ""
        return ";".join(f"{scheme}://{name}" for name in names) + f"/{db}{named}"
    return f"{scheme}://{','.join(names)}" + ("" if form == "cluster" else f"/{db}")
