"""Tasks that cannot be guarded as they are declared are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task

from oncelery import ConfigurationError, IdempotentTask, Oncelery, only_one

#: What Celery reads of a task's options besides its attributes.
CELERYS = (
    *("name", "bind", "shared", "filter", "lazy", "pydantic", "pydantic_strict", "pydantic_context"),
    *("pydantic_dump_kwargs", "autoretry_for", "dont_autoretry_for", "retry_backoff", "retry_backoff_max"),
    *("retry_jitter", "retry_kwargs"),
)


@pytest.fixture
def app() -> Celery:
    """Give an app of this test alone, on nothing but memory."""
    app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(oncelery_store="memory://", task_always_eager=True)
    return app


@pytest.mark.parametrize("option", ["acks_late", "reject_on_worker_lost"])
def test_a_guarded_task_whose_message_would_not_outlive_its_run_is_refused_by_name(app: Celery, option: str) -> None:
    options: dict[str, Any] = {option: False}

    @Oncelery(app).task(name="careless", **options)
    def careless() -> None: ...

    with pytest.raises(ConfigurationError, match=rf"'careless'.*{option}"):
        app.finalize()


@pytest.mark.parametrize("verify", [lambda _run: True, lambda: True, lambda _order, *, _amount: True])
def test_an_on_takeover_that_does_not_take_the_tasks_arguments_is_refused(app: Celery, verify: Any) -> None:
    @Oncelery(app).task(name="charge", on_takeover=verify)
    def charge(order: str, amount: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'charge'.*on_takeover"):
        app.finalize()


def test_an_on_takeover_may_take_anything(app: Celery) -> None:
    once = Oncelery(app)

    @once.task(name="charge", on_takeover=lambda *_args, **_kwargs: True)
    def charge(order: str, *, amount: int = 0) -> None: ...

    @once.task(name="refund", bind=True, on_takeover=lambda _order: True)
    def refund(self: Any, order: str) -> None: ...

    app.finalize()


def test_an_annotation_that_switches_late_acknowledgement_off_is_refused(app: Celery) -> None:
    app.conf.task_annotations = {"annotated": {"acks_late": False}}

    @Oncelery(app).task(name="annotated")
    def annotated() -> None: ...

    with pytest.raises(ConfigurationError, match="'annotated'"):
        app.finalize()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "order"}, "order"),
        ({"ignore": "order"}, "order"),
        ({"scope": "tenant"}, "tenant"),
        ({"lease": 0}, "lease"),
        ({"on_duplicate": "cry"}, "on_duplicate"),
        ({"retry_on": "RefusedError"}, "retry_on"),
    ],
)
def test_a_misconfigured_task_is_reported_by_name_when_the_app_is_finalized(
    app: Celery, options: dict[str, Any], said: str
) -> None:
    @Oncelery(app).task(name="misconfigured", **options)
    def misconfigured(order_id: str) -> None: ...

    with pytest.raises(ConfigurationError, match=f"(?s)'misconfigured'.*{said}"):
        app.finalize()


def test_an_unknown_option_of_ours_is_reported_when_the_app_is_finalized(app: Celery) -> None:
    @app.task(base=IdempotentTask, once={"leese": 3}, name="misspelt")
    def misspelt() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'misspelt': no such option: leese \(did you mean lease\?\)"):
        app.finalize()


@pytest.mark.parametrize(
    ("written", "meant"),
    [("on_duplicates", "on_duplicate"), ("retry_for", "retry_on"), ("max_attempt", "max_attempts"), ("keys", "key")],
)
def test_an_option_that_looks_like_one_of_ours_is_refused_where_it_is_written(
    app: Celery, written: str, meant: str
) -> None:
    once: Any = Oncelery(app)

    with pytest.raises(ConfigurationError, match=rf"no such option: {written} \(did you mean {meant}\?\)"):
        once.task(**{written: 1})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("unique_on", "key="),
        ("lock_expiry", "lease="),
        ("graceful", "on_duplicate="),
        ("raise_on_duplicate", "on_duplicate="),
        ("unlock_before_run", "on_duplicate="),
        ("timeout", "lease="),
        ("ttl", "retention="),
        ("LOCK_TTL_SECONDS", "lease="),
        ("COMPLETION_TTL_SECONDS", "retention="),
    ],
)
def test_an_option_of_another_library_is_refused_with_the_name_it_has_here(app: Celery, old: str, new: str) -> None:
    once: Any = Oncelery(app)
    with pytest.raises(ConfigurationError, match=rf"{old}.*{new}"):
        once.task(**{old: 1})

    class Old(IdempotentTask):
        abstract = True

    setattr(Old, old, 1)

    @app.task(base=Old, name="old")
    def task() -> None: ...

    with pytest.raises(ConfigurationError, match=rf"'old'.*{old}.*{new}"):
        app.finalize()


def test_what_celery_knows_and_attributes_of_your_own_are_left_to_celery(app: Celery) -> None:
    class Keyed(IdempotentTask):
        abstract = True
        keys: tuple[str, ...] = ()

    once: Any = Oncelery(app)

    @once.task(base=Keyed, keys=("a", "b"), team="payments")  # type: ignore[untyped-decorator]
    def owned() -> None: ...

    assert (owned.keys, owned.team) == (("a", "b"), "payments")
    assert callable(once.task(**dict.fromkeys([*CELERYS, *vars(Task)])))


def test_a_coroutine_function_is_refused(app: Celery) -> None:
    @Oncelery(app).task(name="charge")
    async def charge() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'charge' is a coroutine function.*asyncio\.run"):
        app.finalize()


@pytest.mark.parametrize("over", [False, True])
def test_a_guarded_task_that_is_only_one_as_well_is_refused(app: Celery, *, over: bool) -> None:
    def charge() -> None: ...

    once: Any = Oncelery(app)
    app.finalize()

    with pytest.raises(ConfigurationError, match=r"guarded and @only_one.*retention=0"):
        _ = only_one(once.task(charge)) if over else once.task(only_one(charge))


def test_an_option_that_celery_would_make_an_attribute_of_is_refused(app: Celery) -> None:
    @app.task(name="charge", base=IdempotentTask, key="order")
    def charge(order: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'charge' has key= beside its options: write once="):
        app.finalize()


def test_a_name_of_celerys_own_tasks_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match=r"celery\.mine"):
        Oncelery(app).task(name="celery.mine")(lambda: None)
