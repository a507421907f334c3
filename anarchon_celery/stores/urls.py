"""The URLs of databases: how they are read, what is wrong with one in words, how one may be shown.

They are SQLAlchemy's. What is wrong is said without any part of them: it may be one of a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..errors import StoreUnusable
from .options import ESCAPED, NO_PORT, Right, wrong_in_query

#: What is right, by how a scheme begins; the login stands in it where the URL has one.
_RIGHT = {
    "sqlite": "sqlite:///jobs.db",
    "postgres": "postgresql+psycopg://{}host:5432/database",
    "mysql": "mysql+pymysql://{}host:3306/database",
    "mariadb": "mariadb+pymysql://{}host:3306/database",
}


def refuse_wrong_query(url: URL, rights: Mapping[str, Right]) -> None:
    """Refuse the first option of a URL that cannot be meant.

    Raises:
        StoreUnusable: One line: its name, its value, what would be right.
    """
    read = {name: _read(value) for name, value in url.query.items()}
    if (wrong := wrong_in_query(url.query, read, rights)) is not None:
        raise StoreUnusable(f"the {url.drivername} URL of the store cannot be read: {wrong}")


def _read(value: str | tuple[str, ...]) -> Any:
    for kind in (int, float):
        with suppress(TypeError, ValueError):
            return kind(value)  # type: ignore[arg-type]
    return value


def url_of(text: str) -> URL:
    """Read the URL of a database.

    Raises:
        StoreUnusable: One line: what is wrong, and what would be right.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # SQLAlchemy's own words may have the password in them
        raise StoreUnusable(_refusal(text)) from None
    if url.port is not None and not 0 < url.port < 65536:
        raise StoreUnusable(_refusal(text))
    return url


def shown(url: URL) -> str:
    """The URL without passwords, wherever they stand in it."""
    secret = re.compile("pass|pwd|secret|token", re.IGNORECASE)
    query = {name: "***" if secret.search(name) else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


def _refusal(text: str) -> str:
    scheme, _, rest = text.partition(":")
    has_login = "@" in rest
    found = next((it for name, it in _RIGHT.items() if scheme.lower().startswith(name)), _RIGHT["sqlite"])
    right = f"{found.format('user:password@' if has_login else '')} is right"
    if not _is_port_right(rest):
        right = f"{NO_PORT}; {right}"
    elif has_login:
        right = f"{right}, {ESCAPED}"
    return f"the {scheme} URL of the store cannot be read: {right}"


def _is_port_right(rest: str) -> bool:
    """Whether what stands behind the host is a port, if anything does; a query with an @ in it is none."""
    host = re.match(r"//(?:[^?]*@)?(?:\[[^\]]*\]|[^:/?@[]*)(?::([^/?@]*))?(?=[/?]|$)(?!.*@)", rest)
    if host is None or not host[1]:
        return True
    return re.fullmatch("[0-9]{1,5}", host[1]) is not None and 0 < int(host[1]) < 65536
