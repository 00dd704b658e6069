//! The entry points of HTTP: each path with its methods, and each method with its callers and limits. What is declared
//! here is enforced: a body that no entry declares is not read.

use std::fmt;
use std::time::Duration;

use actix_web::dev::{AppService, HttpServiceFactory};
use actix_web::guard::fn_guard;
use actix_web::http::Method;
use actix_web::{HttpMessage, HttpRequest, Resource, Route, web};

use super::body::{MAX_BODY_BYTES, PATIENCE};
use super::connections::HEAD_PATIENCE;
use super::error::ApiError;
use super::whip::MAX_OFFER_BYTES;

/// Who may use an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// Everybody.
    Anybody,
    /// Callers with a valid token, while authentication is on.
    Authenticated,
    /// The same, if `auth.socket` requires it.
    AuthenticatedIfRequired,
    /// Telephone carriers, by the signature or the secret of an account, and callers with a valid token.
    Carriers,
    /// Holders of a token signed with the rooms' key pair, which is verified before a body is read.
    KeyPair,
}

/// What an entry reads besides the head of a request, which is limited to 128 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Nothing.
    Nothing,
    /// A body.
    Body {
        /// The maximum size.
        bytes: usize,
        /// The maximum time.
        within: Duration,
    },
    /// A form with a file, which is kept on disk while it is used.
    Upload {
        /// The maximum size.
        bytes: usize,
        /// The maximum time.
        within: Duration,
    },
    /// Messages, until either side closes the connection.
    Messages {
        /// The maximum size of a message.
        bytes: usize,
        /// How long a client may be silent: a duration, or the setting that defines it.
        idle: &'static str,
    },
}

/// The limits of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Who may use it.
    pub callers: Callers,
    /// What it reads.
    pub reads: Reads,
    /// The settings that limit the number of concurrent uses.
    pub counted_by: &'static str,
}

/// A method of a path, with its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The method.
    pub method: Method,
    /// The pattern of the path.
    pub path: String,
    /// The limits.
    pub bounds: Bounds,
}

impl fmt::Display for Entry {
    /// A row of the table: entry, callers, bytes, time, count.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            method,
            path,
            bounds,
        } = self;
        let callers = match bounds.callers {
            Callers::Anybody => "anybody",
            Callers::Authenticated => "token",
            Callers::AuthenticatedIfRequired => "token, unless `auth.socket` is public",
            Callers::Carriers => "signature or secret of a carrier's account, or token",
            Callers::KeyPair => "token of the key pair",
        };
        let (bytes, time) = match bounds.reads {
            Reads::Nothing => ("no body".to_owned(), format!("head {HEAD_PATIENCE:?}")),
            Reads::Body { bytes, within } => (format!("body {bytes}"), format!("{within:?}")),
            Reads::Upload { bytes, within } => (
                format!("form {bytes}, its file on disk"),
                format!("{within:?}"),
            ),
            Reads::Messages { bytes, idle } => (format!("message {bytes}"), idle.to_owned()),
        };
        let count = bounds.counted_by;
        write!(
            f,
            "| `{method} {path}` | {callers} | {bytes} | {time} | {count} |"
        )
    }
}

/// A handler's route, with its limits.
pub struct Handling {
    route: Box<dyn Fn() -> Route>,
    bounds: Bounds,
}

impl Handling {
    /// A handler that reads no body.
    pub fn new(callers: Callers, route: impl Fn() -> Route + 'static) -> Self {
        Self {
            route: Box::new(route),
            bounds: Bounds {
                callers,
                reads: Reads::Nothing,
                counted_by: "limits.connections",
            },
        }
    }

    /// The same, for these callers.
    pub fn for_callers(mut self, callers: Callers) -> Self {
        self.bounds.callers = callers;
        self
    }

    /// The same, reading a body.
    pub fn with_body(mut self) -> Self {
        self.bounds.reads = Reads::Body {
            bytes: MAX_BODY_BYTES,
            within: PATIENCE,
        };
        self
    }

    /// The same, reading an offer of WebRTC.
    pub fn with_offer(mut self) -> Self {
        self.bounds.reads = Reads::Body {
            bytes: MAX_OFFER_BYTES,
            within: PATIENCE,
        };
        self.bounds.counted_by = "limits.participants";
        self
    }

    /// The same, reading a form with a file.
    pub fn with_upload(mut self, bytes: usize, within: Duration, counted_by: &'static str) -> Self {
        self.bounds.reads = Reads::Upload { bytes, within };
        self.bounds.counted_by = counted_by;
        self
    }

    /// The same, for a WebSocket.
    pub fn with_messages(
        mut self,
        bytes: usize,
        idle: &'static str,
        counted_by: &'static str,
    ) -> Self {
        self.bounds.reads = Reads::Messages { bytes, idle };
        self.bounds.counted_by = counted_by;
        self
    }

    fn route(&self, method: Method) -> Route {
        let bounds = self.bounds;
        // A guard that always passes is the cheapest way to tell a handler what was declared for it.
        (self.route)()
            .method(method)
            .guard(fn_guard(move |context| {
                context.req_data_mut().insert(bounds);
                true
            }))
    }
}

/// The declaration of the entry that a request is using.
pub fn bounds(request: &HttpRequest) -> Option<Bounds> {
    request.extensions().get().copied()
}

/// A path and its methods; any other method is answered with 405 and `Allow`, without authentication.
pub struct Endpoint {
    pub(super) path: String,
    routes: Vec<Route>,
    entries: Vec<(Method, Bounds)>,
}

/// A path without methods.
pub fn at(path: impl Into<String>) -> Endpoint {
    Endpoint {
        path: path.into(),
        routes: Vec::new(),
        entries: Vec::new(),
    }
}

impl Endpoint {
    /// Adds a method.
    #[allow(clippy::needless_pass_by_value)] // made for it
    pub fn on(self, method: Method, handling: Handling) -> Self {
        self.answering(&[method], &handling)
    }

    /// `HEAD` is handled like `GET`; actix leaves the body out.
    #[allow(clippy::needless_pass_by_value)] // made for it
    pub fn get(self, handling: Handling) -> Self {
        self.answering(&[Method::GET, Method::HEAD], &handling)
    }

    fn answering(mut self, methods: &[Method], handling: &Handling) -> Self {
        for method in methods {
            self.routes.push(handling.route(method.clone()));
            self.entries.push((method.clone(), handling.bounds));
        }
        self
    }

    /// The entries of this path.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().map(|(method, bounds)| Entry {
            method: method.clone(),
            path: self.path.clone(),
            bounds: *bounds,
        })
    }
}

impl HttpServiceFactory for Endpoint {
    fn register(self, config: &mut AppService) {
        let methods: Vec<Method> = self.entries.into_iter().map(|(method, _)| method).collect();
        let other = web::to(move |request: HttpRequest| {
            let refused = ApiError::method_not_allowed(request.method(), &methods);
            async { Err::<String, _>(refused) }
        });
        let resource = self
            .routes
            .into_iter()
            .fold(web::resource(self.path), Resource::route);
        resource.default_service(other).register(config);
    }
}
