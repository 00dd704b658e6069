//! Who comes in, and what carriers are told to do with a call.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use uuid::Uuid;

use super::agent::Agent;
use super::caller::{Caller, Kind, TO, handshake, media};
use super::deaf;
use crate::auth::HOUSE;
use crate::harness::*;

const KEY: &str = "an auth token of the account";
const SECRET: &str = "a-secret-of-a-path";
const PUBLIC: &str = "voice.example";

type Headers = Vec<(String, String)>;

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn sign(algorithm: hmac::Algorithm, key: &[u8], text: &str) -> String {
    let signature = hmac::sign(&hmac::Key::new(algorithm, key), text.as_bytes());
    BASE64.encode(signature.as_ref())
}

fn header(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

fn jwt(key: &str, claims: &Value) -> Headers {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let text = format!(
        "{}.{}",
        part(r#"{"alg":"HS256","typ":"JWT"}"#),
        part(&claims.to_string())
    );
    let signature = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()),
        text.as_bytes(),
    );
    let signature = URL_SAFE_NO_PAD.encode(signature.as_ref());
    vec![header(
        "authorization",
        format!("Bearer {text}.{signature}"),
    )]
}

/// The headers of a handshake that is signed with this key.
fn signed(kind: Kind, key: &str) -> Headers {
    let url = format!("wss://{PUBLIC}/carrier/{}/media", kind.slug());
    match kind {
        Kind::Twilio => vec![header(
            "x-twilio-signature",
            sign(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes(), &url),
        )],
        Kind::Plivo => vec![
            header("x-plivo-signature-v3-nonce", "05429567804466091622"),
            header(
                "x-plivo-signature-v3",
                sign(
                    hmac::HMAC_SHA256,
                    key.as_bytes(),
                    &format!("{url}.05429567804466091622"),
                ),
            ),
        ],
        Kind::Vonage => jwt(
            key,
            &json!({"iat": now(), "jti": Uuid::new_v4().to_string(), "iss": "Vonage", "application_id": "a"}),
        ),
        Kind::Genesys => {
            let parameters = format!(
                "(\"@request-target\" \"@authority\" \"audiohook-organization-id\" \"audiohook-session-id\" \"audiohook-correlation-id\" \"x-api-key\");\
keyid=\"{SECRET}\";nonce=\"VGhpc0lzQVVuaXF1ZU5vbmNl\";alg=\"hmac-sha256\";created={};expires={}",
                now(),
                now() + 10
            );
            let base = format!(
                "\"@request-target\": /carrier/genesys/media\n\"@authority\": {PUBLIC}\n\"audiohook-organization-id\": o\n\
\"audiohook-session-id\": s\n\"audiohook-correlation-id\": c\n\"x-api-key\": {SECRET}\n\"@signature-params\": {parameters}"
            );
            let signature = sign(hmac::HMAC_SHA256, key.as_bytes(), &base);
            vec![
                header("audiohook-organization-id", "o"),
                header("audiohook-session-id", "s"),
                header("audiohook-correlation-id", "c"),
                header("x-api-key", SECRET),
                header("signature", format!("sig1=:{signature}:")),
                header("signature-input", format!("sig1={parameters}")),
            ]
        }
        Kind::Telnyx => vec![header("x-telnyx-streaming-auth-token", key)],
        Kind::Exotel => vec![header(
            "authorization",
            format!("Basic {}", BASE64.encode(format!("user:{key}"))),
        )],
    }
}

/// The accounts of all carriers, with Telnyx' key.
fn accounts(telnyx: &Ed25519KeyPair) -> String {
    let key = |kind: Kind| match kind {
        Kind::Genesys => BASE64.encode(KEY),
        Kind::Telnyx => BASE64.encode(telnyx.public_key().as_ref()),
        _ => KEY.to_owned(),
    };
    let accounts = Kind::ALL.map(|kind| {
        let mut account = json!({"kind": kind.slug(), "signing_key": key(kind), "tenant": "shop"});
        if matches!(kind, Kind::Telnyx | Kind::Exotel | Kind::Genesys) {
            account["secret"] = SECRET.into();
        }
        if kind == Kind::Exotel {
            account.as_object_mut().unwrap().remove("signing_key");
        }
        account
    });
    Value::from(accounts.to_vec()).to_string()
}

fn locked(accounts: &str, more: &[(&str, &str)]) -> Server {
    let url = format!("https://{PUBLIC}");
    let mut settings = vec![
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", HOUSE),
        ("CARRIERS_ACCOUNTS_JSON", accounts),
        ("CARRIERS_PUBLIC_URL", &url),
        ("NULL_ENABLED", "true"),
    ];
    settings.extend_from_slice(more);
    Server::start_with(&settings)
}

#[tokio::test]
async fn whoever_has_neither_a_signature_nor_a_secret_nor_a_token_is_refused() {
    let telnyx = Ed25519KeyPair::generate().unwrap();
    let server = locked(&accounts(&telnyx), &[]);
    for kind in Kind::ALL {
        let url = media(&server, kind);
        let by_secret = matches!(kind, Kind::Telnyx | Kind::Exotel);
        let right = if by_secret { SECRET } else { KEY };
        assert!(
            handshake(&url, &signed(kind, right)).await.is_ok(),
            "{kind:?}"
        );
        for headers in [
            Vec::new(),
            signed(kind, "a wrong one"),
            vec![header("authorization", "Bearer none")],
        ] {
            assert_eq!(
                handshake(&url, &headers).await.unwrap_err(),
                401,
                "{kind:?}: {headers:?}"
            );
        }
        // One of our tokens will do as well.
        let token = [header("authorization", format!("Bearer {HOUSE}"))];
        assert!(handshake(&url, &token).await.is_ok(), "{kind:?}");
        // A secret alone is enough where the carrier does not sign.
        let in_path = handshake(&format!("{url}/{SECRET}"), &[]).await;
        assert_eq!(in_path.is_ok(), by_secret, "{kind:?}");
        assert_eq!(
            handshake(&format!("{url}/another-secret-of-a-path"), &[])
                .await
                .unwrap_err(),
            401
        );
    }
    // Signed for somebody else's door.
    let url = media(&server, Kind::Twilio);
    assert_eq!(
        handshake(&format!("{url}?a=b"), &signed(Kind::Twilio, KEY))
            .await
            .unwrap_err(),
        401
    );
}

#[tokio::test]
async fn a_copy_of_a_signed_handshake_opens_no_second_socket() {
    let telnyx = Ed25519KeyPair::generate().unwrap();
    let server = locked(&accounts(&telnyx), &[]);
    for kind in [Kind::Plivo, Kind::Vonage, Kind::Genesys] {
        let url = media(&server, kind);
        let headers = signed(kind, KEY);
        assert!(handshake(&url, &headers).await.is_ok(), "{kind:?}");
        assert_eq!(handshake(&url, &headers).await.unwrap_err(), 401);
    }
    // The next call of Vonage has another id. Twilio signs all calls alike.
    for kind in [Kind::Vonage, Kind::Twilio, Kind::Twilio] {
        let socket = handshake(&media(&server, kind), &signed(kind, KEY)).await;
        assert!(socket.is_ok(), "{kind:?}");
    }
}

#[tokio::test]
async fn without_accounts_nobody_comes_in_where_authentication_is_on() {
    let server = locked("[]", &[]);
    assert_eq!(
        handshake(&media(&server, Kind::Twilio), &[])
            .await
            .unwrap_err(),
        401
    );
    let answer = client().get(format!("{}/carrier/twilio/answer", server.url));
    assert_error(
        answer.send().await.unwrap(),
        401,
        "unauthorized",
        "carriers.accounts_json",
    )
    .await;
    // With an account a signature is needed where it is off, too.
    let server = Server::start_with(&[(
        "CARRIERS_ACCOUNTS_JSON",
        r#"[{"kind":"twilio","signing_key":"a"}]"#,
    )]);
    assert_eq!(
        handshake(&media(&server, Kind::Twilio), &[])
            .await
            .unwrap_err(),
        401
    );
    assert!(handshake(&media(&server, Kind::Plivo), &[]).await.is_ok());
}

#[tokio::test]
async fn the_call_of_a_tenants_account_is_the_tenants() {
    let agent = Agent::start().await;
    let accounts = json!([{"kind": "exotel", "secret": SECRET, "tenant": "shop", "numbers": [TO]},
        {"kind": "exotel", "secret": "another-secret-of-a-path", "numbers": ["+4911"]}]);
    let [(_, url), (_, secret), insecure, private] = agent.settings();
    let routes = json!([{"tenant": "shop", "url": url, "secret": secret}]).to_string();
    let tenants =
        json!([{"id": "shop", "secret": "a-secret-of-thirty-two-bytes-shop"}]).to_string();
    let server = locked(
        &accounts.to_string(),
        &[
            ("AGENT_ROUTES_JSON", &routes),
            (insecure.0, &insecure.1),
            (private.0, &private.1),
            ("AUTH_API_SECRETS_JSON", &tenants),
        ],
    );
    let socket = handshake(&format!("{}/{SECRET}", media(&server, Kind::Exotel)), &[])
        .await
        .unwrap();
    let caller = Caller::over(Kind::Exotel, socket);
    let mut answered = agent.answer(deaf()).await;
    let asked = client().get(format!("{}/sessions", server.url));
    let asked = asked
        .bearer_auth("a-secret-of-thirty-two-bytes-shop")
        .send()
        .await
        .unwrap();
    let sessions: Value = asked.json().await.unwrap();
    assert_eq!(
        sessions["sessions"][0]["stream_id"], answered.call["stream_id"],
        "{sessions}"
    );
    caller.hang_up();
    answered.until(|event| event["status"] == "hangup").await;
    // The called number is none of the other account's.
    let url = format!("{}/another-secret-of-a-path", media(&server, Kind::Exotel));
    let caller = Caller::over(Kind::Exotel, handshake(&url, &[]).await.unwrap());
    assert_eq!(caller.closed().await, 1008);
}

/// What a form of Twilio and Plivo says, and as both sign it.
const FORM: &str = "CallSid=CA1&From=%2B4940&To=%2B4930";
const FORM_SIGNED: &str = "CallSidCA1From+4940To+4930";

fn answer(server: &Server, kind: Kind, more: &str) -> String {
    format!("{}/carrier/{}/answer{more}", server.url, kind.slug())
}

/// Asks for a document as a carrier does that posts forms.
fn post(server: &Server, kind: Kind, more: &str) -> reqwest::RequestBuilder {
    let asked = client().post(answer(server, kind, more));
    asked
        .header("content-type", "application/x-www-form-urlencoded")
        .body(FORM)
}

/// The type of a document and its text.
async fn document(request: reqwest::RequestBuilder) -> (String, String) {
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let kind = answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    (kind, answer.text().await.unwrap())
}

#[tokio::test]
async fn twilio_is_told_to_connect_a_call_and_nobody_else_is() {
    let telnyx = Ed25519KeyPair::generate().unwrap();
    let server = locked(&accounts(&telnyx), &[]);
    let query = "?parameter.campaign=a%26b";
    let signed = format!("https://{PUBLIC}/carrier/twilio/answer{query}{FORM_SIGNED}");
    let signature = sign(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, KEY.as_bytes(), &signed);
    let asked = || post(&server, Kind::Twilio, query);
    let (kind, twiml) = document(asked().header("x-twilio-signature", &signature)).await;
    assert!(kind.starts_with("text/xml"), "{kind}");
    let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<Response>
  <Connect>
    <Stream url="wss://voice.example/carrier/twilio/media">
      <Parameter name="campaign" value="a&amp;b"/>
      <Parameter name="from" value="+4940"/>
      <Parameter name="to" value="+4930"/>
    </Stream>
  </Connect>
</Response>
"#;
    assert_eq!(twiml, expected);
    assert_eq!(asked().send().await.unwrap().status(), 401);
    let another = sign(hmac::HMAC_SHA256, b"a", "b");
    let asked = asked().header("x-twilio-signature", another);
    assert_eq!(asked.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn telnyx_and_plivo_are_told_what_to_do_in_their_xml() {
    let telnyx = Ed25519KeyPair::generate().unwrap();
    let server = locked(&accounts(&telnyx), &[]);
    // With the secret that Telnyx' sockets carry.
    let time = now().to_string();
    let signature = BASE64.encode(telnyx.sign(format!("{time}|{FORM}").as_bytes()).as_ref());
    let asked = post(&server, Kind::Telnyx, "").header("telnyx-timestamp", time);
    let (_, texml) = document(asked.header("telnyx-signature-ed25519", signature)).await;
    let url = format!("url=\"wss://voice.example/carrier/telnyx/media/{SECRET}\"");
    assert!(texml.contains(&url), "{texml}");
    let mode = "bidirectionalMode=\"rtp\" bidirectionalCodec=\"PCMU\"";
    assert!(texml.contains(mode), "{texml}");
    // Headers of Plivo's have letters and digits.
    let signed = format!("https://{PUBLIC}/carrier/plivo/answer?{FORM_SIGNED}.n");
    let signature = sign(hmac::HMAC_SHA256, KEY.as_bytes(), &signed);
    let asked = post(&server, Kind::Plivo, "").header("x-plivo-signature-v3-nonce", "n");
    let (_, xml) = document(asked.header("x-plivo-signature-v3", signature)).await;
    let stream = "<Stream bidirectional=\"true\" keepCallAlive=\"true\" contentType=\"audio/x-mulaw;rate=8000\" \
                  extraHeaders=\"from=4940,to=4930\">wss://voice.example/carrier/plivo/media</Stream>";
    assert!(xml.contains(stream), "{xml}");
}

#[tokio::test]
async fn vonage_exotel_and_genesys_are_told_where_to_connect() {
    let telnyx = Ed25519KeyPair::generate().unwrap();
    let server = locked(&accounts(&telnyx), &[]);
    let query = "?from=4940&to=4930&uuid=u-1&conversation_uuid=c";
    let asked = client().get(answer(&server, Kind::Vonage, query));
    let headers = jwt(KEY, &json!({"iat": now()}));
    let (kind, ncco) = document(asked.header("authorization", &headers[0].1)).await;
    assert_eq!(kind, "application/json");
    let ncco: Value = serde_json::from_str(&ncco).unwrap();
    let endpoint = json!({"type": "websocket", "uri": "wss://voice.example/carrier/vonage/media",
        "content-type": "audio/l16;rate=16000", "headers": {"from": "4940", "to": "4930", "uuid": "u-1"},
        "authorization": {"type": "vonage"}});
    assert_eq!(ncco, json!([{"action": "connect", "endpoint": [endpoint]}]));
    let query = format!("/{SECRET}?CallSid=1&parameter.a=b");
    let (_, address) = document(client().get(answer(&server, Kind::Exotel, &query))).await;
    let address: Value = serde_json::from_str(&address).unwrap();
    let url = format!("wss://voice.example/carrier/exotel/media/{SECRET}?a=b");
    assert_eq!(address, json!({"url": url}));
    // The secret of Genesys is a header.
    let asked = client()
        .get(answer(&server, Kind::Genesys, ""))
        .bearer_auth(HOUSE);
    assert_eq!(
        document(asked).await.1,
        "wss://voice.example/carrier/genesys/media\n"
    );
}
