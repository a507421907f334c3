"""What a Redis says when it does not do what was asked, in one line that names what to do.

``StoreUnreachable`` is what goes away without anybody: a server that is down, starts, or is being
replaced. ``StoreUnusable`` is what somebody has to change; the callers go on asking, and saying so.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from typing import Any

import redis

from ..errors import StoreError, StoreUnreachable, StoreUnusable

#: The oldest server that has all the scripts use.
OLDEST = (6, 2)

#: What goes away by itself, by the server's word for it; the word begins its line, or the client took it off.
_PASSING = {
    "BUSY": "", "LOADING": "", "NOREPLICAS": "", "CLUSTERDOWN": "", "MASTERDOWN": "", "UNBLOCKED": "",
    **dict.fromkeys(("ASK", "TRYAGAIN"), "its keys are on their way to another node: "),
}  # fmt: skip

#: What a server says of the script, which helps nobody.
_OF_THE_SCRIPT = r"^user_script:\d+: -?|,? script: [0-9a-f]{40}.*$"

#: How much of what a server says is shown.
_ENOUGH = 200

#: What somebody has to do, by the server's word.
_TO_DO = {
    "READONLY": "it is a read-only replica: anarchon_store must name the primary",
    "OOM": "its memory is full (maxmemory): give it more, or take out what it need not keep",
    "MISCONF": "it takes no writes because it cannot save to its disk: see the server's log",
    "NOPERM": "its user lacks rights: docs/redis.md lists those it needs",
    "NOAUTH": "it asks for a password: redis://user:password@host is right",
    "WRONGPASS": "it does not know this user with this password",
    "NOPASS": "it has no password, and was given one: take it out of the URL, or set requirepass",
    "MOVED": "it is a node of a Redis Cluster: redis+cluster://host:port is right, or rediss+cluster://",
    "DB": "it has no such database: set another number, or more databases",
    "WRONGTYPE": "a key of the store was made something else: remove it, or use another anarchon_prefix",
    "DENIED": "it is in protected mode: set a password there, or bind it to an address of its own",
    "NOEVAL": "it runs no scripts (EVALSHA): use a Redis or Valkey of 6.2 or newer",
}

#: Where the client has a class for the server's word, and where the word has to be found in the text.
_CLASSES: list[tuple[type[Exception], str]] = [
    (redis.exceptions.ReadOnlyError, "READONLY"),
    (redis.exceptions.BusyLoadingError, "LOADING"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
    (redis.exceptions.MovedError, "MOVED"),
    (redis.exceptions.AskError, "ASK"),
    (redis.exceptions.OutOfMemoryError, "OOM"),
]
_TEXTS = {
    r"without any password configured|no password is set": "NOPASS",
    r"(?i)authentication required": "NOAUTH",
    r"user executing the script can't (run|access)|ACL failure in script": "NOPERM",
    r"(?i)invalid (username-password|password)|wrong number of arguments for 'auth'": "WRONGPASS",
    r"(?i)DB index is out of range|invalid DB index": "DB",
    r"SELECT is not allowed in cluster": "MOVED",
    r"(?i)unknown command.*(EVAL|SENTINEL)": "NOEVAL",
    r"^(?:[^-]*(?:user_script|call to f_).*?-)?(?P<word>[A-Z]{3,}) ": "",
}


def word_of(error: Exception) -> str:
    """Return the server's word for what is wrong, or nothing. Before Redis 7 a script's error hides it."""
    for kind, word in _CLASSES:
        if isinstance(error, kind):
            return word
    for pattern, word in _TEXTS.items():
        if found := re.search(pattern, str(error)):
            return word or found["word"]
    return ""


def told(error: Exception, shown: str) -> StoreError:
    """Return an error of the client as the callers know it, in one line."""
    text, word = re.sub(_OF_THE_SCRIPT, "", " ".join(str(error).split())), word_of(error)
    if word in _TO_DO:
        return StoreUnusable(f"{shown} cannot be used: {_TO_DO[word]} ({text[:_ENOUGH]})")
    if word in _PASSING:
        return StoreUnreachable(f"{shown} does not answer for now: {_PASSING[word]}{text}")
    if trouble := _of_tls(error):
        return StoreUnusable(f"{shown} cannot be used: {trouble}")
    refused = isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError)
    if isinstance(error, redis.ConnectionError | redis.TimeoutError) and not refused:
        return StoreUnreachable(f"{shown} does not answer: {text}")
    return StoreUnusable(f"{shown} cannot be used: {text}")


def _of_tls(error: Exception) -> str | None:
    """What is wrong with TLS that does not go away, if that is what is wrong."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = f"its certificate is not to be trusted ({cause.verify_message})"
            return f"{why}: set ssl_ca_certs to its authority's, and the host as it is named there"
        reason = str(getattr(cause, "reason", "")) if isinstance(cause, ssl.SSLError) else ""
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
            return "it does not speak TLS: redis:// is right instead of rediss://"
        if "ALERT" in reason:
            return f"it refuses our TLS ({reason}): it may want ssl_certfile and ssl_keyfile"
        if isinstance(cause, ssl.SSLError) and cause.library in ("X509", "PEM", "SSL"):
            return f"TLS with it fails ({reason}): look at the ssl_… settings, and at its own"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def complaint(info: dict[str, Any]) -> str | None:
    """Return what is wrong with a server by what it tells of itself, if it tells; nothing is assumed."""
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if len(numbers) == 2 and numbers < OLDEST:
        return f"it is Redis {version}: 6.2 or newer is right, or Valkey"
    policy, most = str(info.get("maxmemory_policy", "")), info.get("maxmemory", 0)
    if policy.startswith("allkeys") and most:
        return (
            f"it throws keys away when it is full (maxmemory-policy {policy}), ours too: "
            "set noeviction or a volatile-… policy, or use another server"
        )
    return None


def forgets(info: dict[str, Any], snapshots: str | None) -> str | None:
    """Return what a server loses that is killed, by what it tells; ``snapshots``: when it makes some.

    That it tells only to some users: where it does not, nothing is assumed.
    """
    if info.get("aof_enabled") != 0 or snapshots is None:
        return None
    if not snapshots:
        return (
            "it keeps nothing on its disk (appendonly no, and no save), so that a restart loses all it has: "
            "set appendonly yes"
        )
    return (
        f"it keeps nothing but snapshots (appendonly no, save {snapshots}), so that a crash loses what came "
        "after the last one, minutes perhaps: set appendonly yes"
    )
