//! The entries of HTTP: each path with its methods, and each method with who may take it and what it may cost. What is
//! declared here is what is enforced: a body that no entry declares is not read.

use std::fmt;
use std::time::Duration;

use actix_web::dev::{AppService, HttpServiceFactory};
use actix_web::guard::fn_guard;
use actix_web::http::Method;
use actix_web::{HttpMessage, HttpRequest, Resource, Route, web};

use super::body::{MAX_BODY_BYTES, PATIENCE};
use super::connections::HEAD_PATIENCE;
use super::error::ApiError;

/// Who may take an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// Anybody.
    Anybody,
    /// Whoever has a good token, while authentication is on.
    Authenticated,
    /// The same, where `auth.socket` says so.
    AuthenticatedIfRequired,
    /// Whoever has a token that is signed with the key pair of the rooms; that is checked before a body is read.
    KeyPair,
}

/// What an entry reads beside the head of a request, which has at most 128 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Nothing.
    Nothing,
    /// A body.
    Body {
        /// Its length.
        bytes: usize,
        /// How long it may take.
        within: Duration,
    },
    /// Messages, until either side has enough.
    Messages {
        /// The length of the largest.
        bytes: usize,
        /// How long a client may be silent: a time, or the setting that says it.
        idle: &'static str,
    },
}

/// What an entry may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Who may take it.
    pub callers: Callers,
    /// What it reads.
    pub reads: Reads,
    /// The settings that bound how many there are at once.
    pub counted_by: &'static str,
}

/// One method of one path, with its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The method.
    pub method: Method,
    /// The path's pattern.
    pub path: String,
    /// What it may cost.
    pub bounds: Bounds,
}

impl fmt::Display for Entry {
    /// A row of a table: entry, who, bytes, time, count.
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
            Callers::KeyPair => "token of the key pair",
        };
        let (bytes, time) = match bounds.reads {
            Reads::Nothing => ("no body".to_owned(), format!("head {HEAD_PATIENCE:?}")),
            Reads::Body { bytes, within } => (format!("body {bytes}"), format!("{within:?}")),
            Reads::Messages { bytes, idle } => (format!("message {bytes}"), idle.to_owned()),
        };
        let count = bounds.counted_by;
        write!(
            f,
            "| `{method} {path}` | {callers} | {bytes} | {time} | {count} |"
        )
    }
}

/// A handler's route, with its bounds.
pub struct Handling {
    route: Box<dyn Fn() -> Route>,
    bounds: Bounds,
}

impl Handling {
    /// One that reads nothing.
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

    /// The same, which reads a body.
    pub fn with_body(mut self) -> Self {
        self.bounds.reads = Reads::Body {
            bytes: MAX_BODY_BYTES,
            within: PATIENCE,
        };
        self
    }

    /// The same, which becomes a socket.
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
        // A guard that lets everybody pass is the cheapest way to tell a handler what was declared for it.
        (self.route)()
            .method(method)
            .guard(fn_guard(move |context| {
                context.req_data_mut().insert(bounds);
                true
            }))
    }
}

/// What was declared for the entry that a request has taken.
pub fn bounds(request: &HttpRequest) -> Option<Bounds> {
    request.extensions().get().copied()
}

/// A path and what it answers to; any other method is 405 with `Allow`, whoever asks.
pub struct Endpoint {
    pub(super) path: String,
    routes: Vec<Route>,
    entries: Vec<(Method, Bounds)>,
}

/// A path that answers to nothing yet.
pub fn at(path: impl Into<String>) -> Endpoint {
    Endpoint {
        path: path.into(),
        routes: Vec::new(),
        entries: Vec::new(),
    }
}

impl Endpoint {
    /// The same, which answers to a method.
    #[allow(clippy::needless_pass_by_value)] // made for it
    pub fn on(self, method: Method, handling: Handling) -> Self {
        self.answering(&[method], &handling)
    }

    /// `HEAD` is answered like `GET`; the connection leaves the body out.
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

    /// What there is at this path.
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
