from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from guarded.receiver import OLD_SECRET, SECRET, receiving
from msgspec.structs import replace

from oncelery import ConfigurationError, DeliveryError, WebhookTargetError, WebhookVerificationError, verify_webhook
from oncelery.job import Failure, Job, State
from oncelery.webhooks import sending
from oncelery.webhooks.event import MOST_BYTES, event_of
from oncelery.webhooks.sending import send
from oncelery.webhooks.signing import read_secrets, sign
from oncelery.webhooks.target import Target, is_public, target_of

# Signatures

#: The example of Standard Webhooks and of its libraries.
VECTOR = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
VECTOR_SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VECTOR_PAYLOAD = b'{"test": 2432232314}'
VECTOR_TIME = 1614265330


def verify(payload: bytes = VECTOR_PAYLOAD, *, now: float = VECTOR_TIME, **changed: str) -> object:
    headers = VECTOR | {f"webhook-{name}": value for name, value in changed.items()}
    return verify_webhook(payload, headers, VECTOR_SECRET, now=now)


def test_the_example_of_standard_webhooks_is_signed_as_it_is_there() -> None:
    made = sign(VECTOR["webhook-id"], VECTOR_TIME, VECTOR_PAYLOAD, VECTOR_SECRET)

    assert made == VECTOR["webhook-signature"]
    assert verify() == {"test": 2432232314}


def test_headers_are_found_in_whatever_case_and_the_payload_may_be_text() -> None:
    headers = {name.title(): value for name, value in VECTOR.items()}

    assert verify_webhook(VECTOR_PAYLOAD.decode(), headers, [VECTOR_SECRET], now=VECTOR_TIME)


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "msg_other"},
        {"timestamp": str(VECTOR_TIME + 1)},
        {"signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF="},
        {"signature": "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {"signature": "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {"signature": "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {"signature": "v1,ünïcode"},
        {"signature": ""},
        {"timestamp": "yesterday"},
        {"now": VECTOR_TIME + 301},
        {"now": VECTOR_TIME - 301},
    ],
)
def test_what_is_changed_or_old_is_not_verified(changed: dict[str, Any]) -> None:
    with pytest.raises(WebhookVerificationError):
        verify(**changed)


def test_another_payload_is_not_verified_nor_one_without_headers() -> None:
    with pytest.raises(WebhookVerificationError, match="no secret of ours"):
        verify(b'{"test": 2432232315}')
    with pytest.raises(WebhookVerificationError, match="missing"):
        verify_webhook(VECTOR_PAYLOAD, {}, VECTOR_SECRET)


def test_while_a_secret_rotates_receivers_with_either_one_are_served() -> None:
    signature = sign("id", VECTOR_TIME, b"{}", [SECRET, OLD_SECRET])
    headers = {"webhook-id": "id", "webhook-timestamp": str(VECTOR_TIME), "webhook-signature": signature}

    assert signature.count("v1,") == 2
    for known in (SECRET, OLD_SECRET, f"{VECTOR_SECRET} {OLD_SECRET}"):
        assert verify_webhook(b"{}", headers, known, now=VECTOR_TIME) == {}
    with pytest.raises(WebhookVerificationError):
        verify_webhook(b"{}", headers, VECTOR_SECRET, now=VECTOR_TIME)


@pytest.mark.parametrize(
    "text", ["", "hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%", SECRET.removeprefix("whsec_")]
)
def test_a_secret_that_is_none_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_secrets(text)

    assert len(text) < 10 or text.removeprefix("whsec_") not in str(refused.value)


# Targets


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/hook?tenant=1",
        "https://hooks.example.co.uk:8443/a/b",
        "https://1.1.1.1/",
        "https://[2606:4700:4700::1111]/hook",
        "https://xn--bcher-kva.example/",
        "HTTPS://EXAMPLE.com/",
    ],
)
def test_public_https_may_be_called(url: str) -> None:
    assert target_of(url).tls


@pytest.mark.parametrize(
    "url",
    [
        # not https
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "//example.com/",
        "example.com",
        "",
        # loopback, private, link-local and metadata addresses
        "https://127.0.0.1/",
        "https://127.1.2.3/",
        "https://0.0.0.0/",
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://100.64.0.1/",
        "https://100.100.100.200/",
        "https://168.63.129.16/",
        "https://192.0.0.192/",
        "https://198.18.0.1/",
        "https://224.0.0.1/",
        "https://240.0.0.1/",
        "https://255.255.255.255/",
        # the same in other forms
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.1/",
        "https://10.1/",
        "https://1.1.1.1.1/",
        "https://example.0x1/",
        "https://3232235777/",
        # IPv6
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[::ffff:1.1.1.1]/",
        "https://[::127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://[64:ff9b:1::1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001:0:7f00:1::]/",
        "https://[fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fc00::1]/",
        "https://[fd00:ec2::254]/",
        "https://[fec0::1]/",
        "https://[ff02::1]/",
        "https://[2001:db8::1]/",
        "https://[127.0.0.1]/",
        # names that are none
        "https:///hook",
        "https://example..com/",
        "https://example.com./",
        "https://-example.com/",
        "https://exa mple.com/",
        "https://exämple.com/",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://①②⑦.0.0.1/",
        "https://127。0。0。1/",
        # userinfo, ports and what parsers read differently
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://example.com@127.0.0.1/",
        "https://127.0.0.1\\@example.com/",
        "https://example.com\\.evil.com/",
        "https://example.com:22/",
        "https://example.com:25/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:port/",
        "https://example.com/\r\nHost: evil",
        "https://example.com/\thook",
        "https://example.com/" + "a" * 2048,
    ],
)
def test_what_could_lead_inside_is_refused_by_its_url(url: str) -> None:
    with pytest.raises(WebhookTargetError):
        target_of(url)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    asked: list[str] = []

    def answer(host: str, port: int, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


@pytest.mark.parametrize(
    "inside", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1%eth0"]
)
def test_a_name_that_leads_inside_is_refused_even_among_public_addresses(
    monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    resolve_to(monkeypatch, "93.184.216.34", inside)

    with pytest.raises(WebhookTargetError, match="not public"):
        target_of("https://rebinding.example/").addresses()


def test_a_name_is_resolved_once_and_its_checked_address_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolve_to(monkeypatch, "93.184.216.34")
    connected: list[Any] = []

    def connect(address: object, _timeout: float) -> socket.socket:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)

    with pytest.raises(DeliveryError, match="ConnectionRefusedError"):
        send(target_of("https://rebinding.example/"), b"{}", {})
    assert asked == ["rebinding.example"]
    assert connected == [("93.184.216.34", 443)]


def test_private_addresses_may_be_allowed_and_only_they_over_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_of("http://127.0.0.1:8000/hook", private=True).addresses() == [ip_address("127.0.0.1")]
    assert target_of("https://10.0.0.1:22/", private=True).port == 22

    resolve_to(monkeypatch, "93.184.216.34")
    with pytest.raises(WebhookTargetError, match="https:// only"):
        target_of("http://example.com/", private=True).addresses()


def test_a_name_that_cannot_be_found_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(socket, "getaddrinfo", fail)

    with pytest.raises(DeliveryError, match="cannot be found"):
        target_of("https://example.com/").addresses()


def test_groups_are_not_public() -> None:
    assert not any(is_public(ip_address(text)) for text in ("224.0.0.1", "ff0e::1", "239.1.1.1"))


# Sending


def local(url: str) -> Target:
    return target_of(url, private=True)


def test_a_call_back_is_posted_to_its_path_under_the_name_of_its_host() -> None:
    with receiving() as receiver:
        status = send(local(f"http://localhost:{receiver.port}/hook?a=1"), b'{"a":1}', {"webhook-id": "1"})

    assert status == 204
    (call,) = receiver.calls
    assert (call.path, call.body, call.headers["host"]) == ("/hook?a=1", b'{"a":1}', f"localhost:{receiver.port}")


def test_a_redirect_is_not_followed() -> None:
    with (
        receiving() as inside,
        receiving([307], location=inside.url()) as receiver,
        pytest.raises(DeliveryError, match="answered 307"),
    ):
        send(local(receiver.url()), b"{}", {})

    assert len(receiver.calls) == 1
    assert not inside.calls


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_a_refusal_may_pass(status: int) -> None:
    with receiving([status]) as receiver, pytest.raises(DeliveryError, match=str(status)):
        send(local(receiver.url()), b"{}", {})


def test_a_receiver_that_is_gone_is_not_called_again() -> None:
    with receiving([410]) as receiver, pytest.raises(WebhookTargetError, match="no more call-backs"):
        send(local(receiver.url()), b"{}", {})


def test_a_receiver_that_answers_byte_by_byte_is_cut_off() -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                while not stop.wait(0.05):
                    try:
                        connection.send(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        started = monotonic()

        with pytest.raises(DeliveryError):
            send(local(f"http://127.0.0.1:{server.getsockname()[1]}/"), b"{}", {}, seconds=0.5)

        assert monotonic() - started < 10
        stop.set()
        thread.join()


def test_a_certificate_that_is_not_the_host_s_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []

    def shake(self: ssl.SSLContext, *_: object, server_hostname: str, **__: object) -> None:
        assert self.check_hostname
        assert self.verify_mode is ssl.CERT_REQUIRED
        named.append(server_hostname)
        raise ssl.SSLCertVerificationError(1, "hostname mismatch")

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", shake)
    with receiving() as receiver, pytest.raises(DeliveryError, match="SSLCertVerificationError"):
        send(local(f"https://localhost:{receiver.port}/"), b"{}", {})

    # As many times as the name has addresses.
    assert set(named) == {"localhost"}
    assert len(named) <= sending.ADDRESSES_TRIED


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_over_tls_the_checked_address_is_called_under_the_name_that_its_certificate_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.example"]
    make += ["-addext", "subjectAltName=DNS:hooks.example", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    resolve_to(monkeypatch, "127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(certificate))

    with receiving(certificate=(certificate, key)) as receiver:
        with pytest.raises(DeliveryError, match="SSLCertVerificationError"):
            send(local(f"https://hooks.example:{receiver.port}/"), b"{}", {})
        monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
        assert send(local(f"https://hooks.example:{receiver.port}/hook"), b"{}", {}) == 204
        with pytest.raises(DeliveryError, match="SSLCertVerificationError"):
            send(local(f"https://other.example:{receiver.port}/hook"), b"{}", {})

    assert [call.headers["host"] for call in receiver.calls] == [f"hooks.example:{receiver.port}"]


# What a call-back says


AT = datetime(2026, 11, 15, tzinfo=UTC)
COMPLETED = Job(
    id="j-1",
    key="0" * 64,
    task="charge",
    state=State.COMPLETED,
    created_at=AT,
    changed_at=AT + timedelta(seconds=1),
)


def test_a_completed_job_is_told_with_its_result() -> None:
    event = json.loads(event_of(replace(COMPLETED, attempt=2, scope="acme"), b'{"paid":1}'))

    assert event["type"] == "job.completed"
    assert event["timestamp"] == "2026-11-15T00:00:01Z"
    told = {name: event["data"][name] for name in ("id", "task", "scope", "state", "attempts", "result")}
    assert told == {
        "id": "j-1",
        "task": "charge",
        "scope": "acme",
        "state": "completed",
        "attempts": 2,
        "result": {"paid": 1},
    }


def test_a_failed_job_is_told_with_its_error_but_without_the_traceback() -> None:
    failure = Failure(type="CardRefused", message="no", traceback='File "secret.py"')

    event = event_of(replace(COMPLETED, state=State.BURIED, reason="failed", error=failure), None)

    about = json.loads(event)["data"]
    assert (about["reason"], about["error"]) == ("failed", {"type": "CardRefused", "message": "no"})
    assert b"secret.py" not in event


def test_a_result_that_is_too_large_is_left_out_and_said_to_be() -> None:
    event = json.loads(event_of(COMPLETED, b'"' + b"a" * MOST_BYTES + b'"'))

    assert event["data"]["result_omitted"] is True
    assert "result" not in event["data"]
