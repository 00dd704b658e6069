//! The path and query of the request that opens signalling. The token is sent in a header by `driver`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use livekit_protocol as proto;
use prost::Message as _;

/// Which of LiveKit's two protocols is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// `/rtc/v1`: one peer connection, in which the client offers. Servers of 2026 and later have it.
    One,
    /// `/rtc`: one for what is published and one for what is subscribed to. Every server has it.
    Two,
}

/// The protocol that is spoken. Version 18 has data channels that are never opened in band.
const PROTOCOL: i32 = 16;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a request says.
#[derive(Debug)]
pub struct Request {
    /// By which way.
    pub route: Route,
    /// The first offer, with one connection.
    pub offer: Option<proto::SessionDescription>,
    /// The sid of the session to go on with.
    pub resume: Option<String>,
}

impl Request {
    /// The path below the server's address, and the query.
    pub fn target(&self) -> (&'static str, String) {
        match self.route {
            Route::One => ("rtc/v1", self.one()),
            Route::Two => ("rtc", self.two()),
        }
    }

    fn one(&self) -> String {
        let resume = self.resume.as_ref();
        let request = proto::JoinRequest {
            client_info: Some(proto::ClientInfo {
                sdk: proto::client_info::Sdk::Rust as i32,
                version: VERSION.to_owned(),
                protocol: PROTOCOL,
                os: std::env::consts::OS.to_owned(),
                ..Default::default()
            }),
            connection_settings: Some(proto::ConnectionSettings::default()),
            publisher_offer: self.offer.clone().filter(|_| resume.is_none()),
            reconnect: resume.is_some(),
            reconnect_reason: self.reason(),
            participant_sid: resume.cloned().unwrap_or_default(),
            ..Default::default()
        };
        let wrapped = proto::WrappedJoinRequest {
            compression: proto::wrapped_join_request::Compression::None as i32,
            join_request: request.encode_to_vec(),
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("join_request", &URL_SAFE.encode(wrapped.encode_to_vec()));
        query.finish()
    }

    fn two(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query
            .append_pair("sdk", "rust")
            .append_pair("protocol", &PROTOCOL.to_string())
            .append_pair("version", VERSION)
            .append_pair("os", std::env::consts::OS)
            .append_pair("auto_subscribe", "0")
            .append_pair("adaptive_stream", "0");
        if let Some(sid) = &self.resume {
            query
                .append_pair("reconnect", "1")
                .append_pair("sid", sid)
                .append_pair("reconnect_reason", &self.reason().to_string());
        }
        query.finish()
    }

    fn reason(&self) -> i32 {
        match self.resume {
            Some(_) => proto::ReconnectReason::RrSignalDisconnected as i32,
            None => proto::ReconnectReason::RrUnknown as i32,
        }
    }
}
