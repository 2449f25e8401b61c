"""Names whose value is not shown, one row each with where it comes from; and names that stay readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core import secrets
from dlpipe.core.secrets import is_token, names_secret
from dlpipe.core.urls import redact

HIDDEN = {
    "passwords": "pass pwd pw password passwd passphrase passcode pin otp user_pass userpass pass2 db-password",
    "keys": "key apikey api_key api-key APIKey apiKey X-Api-Key x_api_key accesskey access_key secretKey passkey "
    "subscription-key Ocp-Apim-Subscription-Key licensekey.key key1 KEY keys",
    "tokens": "token access_token accessToken accesstoken id_token refresh-token authtoken X-Plex-Token token2 "
    "csrf_token sastoken upload.token token[] token%5B%5D tok%65n jwt bearer",
    "log-ins": "auth authorization Authorization client_auth code session sessionid session_id SessionKey sid sess "
    "PHPSESSID JSESSIONID ASPSESSIONIDAB ASP.NET_SessionId cookie csrf xsrf ticket SAMLResponse SAMLart assertion "
    "oauth_nonce oauth_timestamp oauth_verifier OAuth2 client_secret client-credentials cred",
    "signatures": "sig signature Sig urlSignature hmac md5 hash sha1 policy nonce hdnts hdnea",
    "Azure": "sv ss srt sp se st spr sr sip si sig sdd saoid suoid scid skoid sktid skt ske sks skv ses SV Se",
    "Amazon": "X-Amz-Algorithm X-Amz-Credential X-Amz-Date X-Amz-Expires X-Amz-SignedHeaders X-Amz-Signature "
    "X-Amz-Security-Token x-amz-meta-x X_Amz_Date X%2DAmz%2DDate AWSAccessKeyId",
    "CloudFront": "Expires Policy Signature Key-Pair-Id Hash-Algorithm",
    "Google": "X-Goog-Algorithm X-Goog-Credential X-Goog-Date X-Goog-Expires X-Goog-Signature GoogleAccessId",
    "others": "x-oss-signature x-oss-date OSSAccessKeyId q-sign-time q-ak x-cos-security-token x-ms-date x-obs-date",
}
READABLE = (
    "page id doi v q query sort order lang format type file filename name title year volume issue start end offset "
    "limit size version rev download inline disposition ref source isbn pmid pmcid arxivId articleNumber path dir "
    "category author author_id keyword keywords monkey design spec step stage status state passage passenger compass "
    "seq set serial site signal assign keyboard codec encode postcode sidebar hashtag policyholder s e t"
).split()


@pytest.mark.parametrize(("origin", "name"), [(origin, name) for origin in HIDDEN for name in HIDDEN[origin].split()])
def test_the_value_of_a_name_that_lets_in_is_not_shown(origin: str, name: str) -> None:
    assert redact(f"https://h/a?page=2&{name}=5ecret&v=1") == f"https://h/a?page=2&{name}=REDACTED&v=1", origin
    assert redact(f"https://h/a;{name}=5ecret") == f"https://h/a;{name}=REDACTED", origin


@pytest.mark.parametrize("name", [*secrets.PIECES, *sorted(secrets.WORDS), *sorted(secrets.NAMES), *secrets.FAMILIES])
def test_each_row_of_the_list_is_a_name_that_is_hidden_however_it_is_spelled(name: str) -> None:
    for spelled in (name, name.upper(), name.title(), f"%{ord(name[0]):02x}{name[1:]}", f" {name}"):
        assert names_secret(spelled), spelled


@pytest.mark.parametrize("name", READABLE)
def test_a_public_name_keeps_its_value(name: str) -> None:
    assert redact(f"https://h/a?{name}=abc-12") == f"https://h/a?{name}=abc-12"


@pytest.mark.parametrize(
    "doi", ["10.1016/j.jclinepi.2020.01.008", "10.1371%2Fjournal.pone.0123456", "10.1007/978-3-030-12345-6_7"]
)
def test_a_doi_is_no_token_however_long_it_is(doi: str) -> None:
    for url in (f"https://h/a?doi={doi}", f"https://h/a?id={doi}", f"https://h/a?{doi}"):
        assert redact(url) == url


@pytest.mark.parametrize("text", ["10.1234/" + "a1B2" * 6, "10.12/" + "x" * 24, "a" * 24, "10.1234/x?" + "y" * 24])
def test_a_token_that_begins_like_a_doi_is_one(text: str) -> None:
    assert text not in redact(f"https://h/a?id={text}")


@given(st.text())
def test_any_name_can_be_asked_about(name: str) -> None:
    assert names_secret(name) in (True, False)
    assert is_token(name) in (True, False)
