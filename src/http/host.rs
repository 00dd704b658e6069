//! Checks the `Host` of requests. Where any program on the machine may use the API without a token, a web page could,
//! too, by pointing its own host name at a loopback address, so that its browser considers the responses same-origin
//! (DNS rebinding). Browsers send that name in `Host`, so there only names of this machine are accepted (otherwise
//! 421).

use std::net::IpAddr;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{HttpRequest, ResponseError, web};

use super::error::{ApiError, Code};
use vivavoce_config::Settings;
use vivavoce_core::host_name::{Host, host_name};

/// The host names by which a server may be addressed.
#[derive(Debug, Clone, Default)]
pub struct AllowedHosts(Option<Vec<Host>>);

impl AllowedHosts {
    /// The list for a listener at this address; `open` if no token is required. Only an open listener on a loopback
    /// address has such a list: others are protected by tokens, or open to everybody anyway.
    pub fn new(settings: &Settings, address: IpAddr, open: bool) -> Self {
        let listed = &settings.server.allowed_hosts.0;
        let any = listed.iter().any(|host| host == "*");
        if any || !open || !address.to_canonical().is_loopback() {
            return Self(None);
        }
        let listed = listed.iter().filter_map(|host| Some(host_name(host)?.host));
        let localhost = Host::Name("localhost".to_owned());
        Self(Some(listed.chain([localhost]).collect()))
    }

    fn contain(&self, text: &str) -> bool {
        let Some(allowed) = &self.0 else { return true };
        host_name(text).is_some_and(|name| match &name.host {
            Host::Address(address) if address.is_loopback() => true,
            host => allowed.contains(host),
        })
    }

    /// Whether a request names an allowed host in every place that names one. A request without one does not come from
    /// a browser.
    fn allow(&self, request: &HttpRequest) -> bool {
        let lines = request.headers().get_all(header::HOST);
        let mut lines = lines.map(HeaderValue::to_str);
        let target = request.uri().authority();
        // User information would be somebody else's login; browsers send none.
        target.is_none_or(|authority| self.contain(authority.as_str()))
            && lines.all(|line| line.is_ok_and(|line| self.contain(line)))
    }
}

/// The middleware that refuses requests for other hosts.
pub async fn check(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let allowed = request.app_data::<web::Data<AllowedHosts>>();
    if allowed.is_none_or(|allowed| allowed.allow(request.request())) {
        return next.call(request).await;
    }
    let refused = ApiError::new(
        Code::MisdirectedRequest,
        "Host: this server is asked for as localhost or by a loopback address; server.allowed_hosts names others",
    );
    Ok(request.into_response(refused.error_response()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;
    use std::collections::HashMap;
    use vivavoce_config::Config;

    fn hosts(listed: &str, address: &str, open: bool) -> AllowedHosts {
        let listed = listed.replace(' ', ",");
        let flags = [("server.allowed_hosts".to_owned(), listed)];
        let settings = Config::from_sources(&flags, &HashMap::new(), None);
        let settings = settings.unwrap().settings;
        AllowedHosts::new(&settings, address.parse().unwrap(), open)
    }

    fn asked(hosts: &AllowedHosts, lines: &[&str]) -> bool {
        let mut request = TestRequest::default();
        for line in lines {
            request = request.append_header((header::HOST, *line));
        }
        hosts.allow(&request.to_http_request())
    }

    #[test]
    fn a_page_that_points_its_name_at_this_machine_is_refused() {
        let hosts = hosts("voice.internal 10.1.2.3", "127.0.0.1", true);
        for host in [
            "localhost",
            "LocalHost",
            "localhost.",
            "localhost:3001",
            "localhost:",
            "127.0.0.1",
            "127.0.0.1:3001",
            "127.9.9.9",
            "[::1]",
            "[::1]:3001",
            "[::ffff:127.0.0.1]:3001",
            "voice.internal",
            "Voice.Internal.:80",
            "10.1.2.3:3001",
        ] {
            assert!(asked(&hosts, &[host]), "{host}");
        }
        for host in [
            "",
            ".",
            "evil.example",
            "evil.example:3001",
            "localhost.evil.example",
            "evil.localhost",
            "127.0.0.1.evil.example",
            "127.0.0.1evil",
            "0.0.0.0",
            "0.0.0.0:3001",
            "[::]",
            "[::1",
            "::1",
            "[::1]evil",
            "[::1%25lo]",
            "10.1.2.4",
            "localhost:x",
            "localhost:99999",
            "localhost:3001:3001",
            "localhost..",
            "user@localhost",
            "localhost/",
            "localhost\u{e4}",
            "127.1",
            "2130706433",
            "0x7f.1",
        ] {
            assert!(!asked(&hosts, &[host]), "{host}");
        }
        assert!(asked(&hosts, &[]));
        assert!(asked(&hosts, &["localhost", "127.0.0.1"]));
        assert!(!asked(&hosts, &["localhost", "evil.example"]));
    }

    #[test]
    fn the_target_of_a_request_counts_beside_its_host() {
        let hosts = hosts("", "::1", true);
        for (target, good) in [
            ("http://localhost:3001/", true),
            ("http://evil.example/", false),
            ("http://evil@localhost/", false),
        ] {
            let request = TestRequest::with_uri(target).append_header((header::HOST, "localhost"));
            assert_eq!(hosts.allow(&request.to_http_request()), good, "{target}");
        }
    }

    #[test]
    fn any_name_will_do_where_a_token_is_needed_or_others_can_reach_the_server() {
        for hosts in [
            hosts("", "127.0.0.1", false),
            hosts("", "0.0.0.0", true),
            hosts("", "192.0.2.1", true),
            hosts("*", "127.0.0.1", true),
        ] {
            assert!(asked(&hosts, &["evil.example"]));
        }
        assert!(!asked(&hosts("", "127.0.0.2", true), &["evil.example"]));
        assert!(!asked(
            &hosts("", "::ffff:127.0.0.1", true),
            &["evil.example"]
        ));
    }
}
