"""Of each verb: which runs it is about, and what of its answer is written down, as JSON can have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anarchon_celery.protocol import Started

Key = tuple[str, int]


def _of_keys(asked: Any, *_: Any, **__: Any) -> list[Key]:
    return [(one.key.job, one.key.slot) for one in asked]


def _of_second(_: Any, asked: Any, *__: Any, **___: Any) -> list[Key]:
    return _of_keys(asked)


def _of_offers(_: Any, offers: Any, *__: Any, **___: Any) -> list[Key]:
    return [(offer.job, slot) for offer in offers for slot in offer.slots]


def _of_start(asked: Any, **_: Any) -> list[Key]:
    return [(asked.key.job, asked.key.slot)]


def _of_key(key: Any, *_: Any, **__: Any) -> list[Key]:
    return [(key.job, key.slot)]


def _of_none(*_: Any, **__: Any) -> list[Key]:
    return []


def of_publication(_entry: Any, run: Any, *_: Any, **__: Any) -> list[Key]:
    return [(run.job, run.slot)]


def always(*_: Any, **__: Any) -> bool:
    return True


def _won(answers: Any, *_: Any, nonce: str, **__: Any) -> list[dict]:
    claims = [claim for answer in answers for claim in answer.claims]
    return [_claim(claim, nonce) for claim in claims if claim.won]


def _retaken(claims: Any, _: Any, asked: Any, *, nonce: str, **__: Any) -> list[dict]:
    return [
        {**_claim(claim, nonce), 'seen': [seen.state, seen.dispatch, seen.deadline]}
        for claim, seen in zip(claims, asked, strict=True)
        if claim.won
    ]


def _claim(claim: Any, nonce: str) -> dict:
    return {'key': claim.key[:2], 'nonce': nonce}


def _started(answer: Any, asked: Any, **_: Any) -> dict | None:
    if not isinstance(answer, Started):
        return None
    return {'token': asked.token, 'attempt': answer.attempt, 'fence': answer.fence, 'retries': asked.retries}


def _renewed(answers: Any, holdings: Any, **_: Any) -> list[dict]:
    pairs = zip(answers, holdings, strict=True)
    return [{'key': one.key[:2], 'token': one.token} for answer, one in pairs if answer.answer == 'ok']


def _by_token(answer: bool, _: Any, token: str, *__: Any, **___: Any) -> dict | None:
    return {'token': token} if answer else None


def _released(answers: Any, releases: Any, **_: Any) -> list[dict]:
    pairs = zip(answers, releases, strict=True)
    return [{'key': one.key[:2], 'token': one.token or one.nonce} for answer, one in pairs if answer]


#: Which runs, and what of the answer.
VERBS: dict[str, tuple[Callable[..., list[Key]], Callable[..., Any]]] = {
    'register': (_of_none, always),
    'claim': (_of_offers, _won),
    'sent': (_of_keys, always),
    'expired': (_of_none, lambda page, *_, **__: len(page.runs)),
    'redispatch': (_of_second, _retaken),
    'leave': (_of_none, always),
    'start': (_of_start, _started),
    'renew': (_of_keys, _renewed),
    'finish': (_of_key, _by_token),
    'requeue': (_of_key, _by_token),
    'release': (_of_keys, _released),
    'prune': (_of_none, always),
}
