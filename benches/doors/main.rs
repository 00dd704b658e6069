//! The server with its doors as they are, or without the middleware that observes requests, to be run under callgrind
//! by `run.py` beside this file: `doors [--silent] [--unobserved] KEY=VALUE...`. It prints its address, and serves until
//! its standard input ends. Who asks is another process, which is not counted.

#![allow(missing_docs, clippy::unwrap_used)]

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;

use actix::Actor;
use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::{App, web};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use vivavoce::actors::registry::calls::CallRegistry;
use vivavoce::actors::registry::hooks::HookRegistry;
use vivavoce::actors::registry::rooms::RoomRegistry;
use vivavoce::actors::registry::sessions::SessionRegistry;
use vivavoce::actors::registry::voices::VoiceRegistry;
use vivavoce::actors::session::SessionServices;
use vivavoce::auth::Authenticator;
use vivavoce::config::{Config, Settings};
use vivavoce::hooks::{Configured, HookFile, Hooks};
use vivavoce::http::inspect::{Feed, SettingsInForce};
use vivavoce::http::openai::OpenAi;
use vivavoce::http::{self, AppState, Limits, Listen, Origins, Sockets, WhipSessions};
use vivavoce::quotas::{FairQueue, Quotas, Share};
use vivavoce::synthesis::Synthesizer;
use vivavoce::tls_roots::Authorities;
use vivavoce::webhooks::{WebhookSettings, Webhooks};
use vivavoce::{server, telemetry};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let switch = |name: &str| arguments.iter().any(|argument| argument == name);
    let (silent, observed) = (switch("--silent"), !switch("--unobserved"));
    let flags: Vec<(String, String)> = arguments
        .iter()
        .filter_map(|argument| argument.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .unwrap();
    let settings = Config::load(&flags, None).unwrap().settings;
    if !silent {
        telemetry::start(
            settings.log.level,
            settings.log.format,
            None,
            "vivavoce",
            &Authorities::default(),
        )
        .unwrap();
    }
    actix_web::rt::System::new().block_on(async move {
        let server = serve(&settings, observed);
        let handle = server.handle();
        actix_web::rt::spawn(async move {
            let end = || std::io::stdin().read_to_end(&mut Vec::new());
            tokio::task::spawn_blocking(end).await.unwrap().unwrap();
            handle.stop(false).await;
        });
        server.await.unwrap();
    });
}

/// Everything that a request can reach, as `vivavoce serve` puts it together.
struct Parts {
    state: web::Data<AppState>,
    sockets: web::Data<Sockets>,
    limits: web::Data<Limits>,
    origins: web::Data<Origins>,
}

fn parts(settings: &Settings) -> Parts {
    let providers = Arc::new(server::providers(settings).unwrap());
    let quotas = Quotas::new(settings);
    let synthesis = server::synthesis_settings(settings, &quotas);
    let synthesizer = Synthesizer::open(Arc::clone(&providers), &synthesis).unwrap();
    let sessions = SessionRegistry::default().start();
    let services = Arc::new(SessionServices {
        dialect: Arc::new(settings.dialect.words()),
        providers: Arc::clone(&providers),
        llm: Arc::default(),
        synthesizer: Arc::clone(&synthesizer),
        sessions: sessions.clone(),
        rooms: None,
        calls: None,
        webhooks: None,
        recordings: None,
        egresses: None,
        quotas: quotas.clone(),
        closing: CancellationToken::new(),
        draining: CancellationToken::new(),
        replaced: CancellationToken::new(),
        settings: server::session_settings(settings),
        backchannels: Arc::default(),
        resumes: Arc::default(),
        replicas: None,
    });
    let configured = Configured::new(settings).unwrap();
    let told = WebhookSettings::new(settings, configured.keys());
    let webhooks = Webhooks::open(&told, &Authorities::default()).unwrap();
    let file = HookFile::new(settings.storage.data_dir.clone());
    let hooks = Hooks::in_file(configured, file);
    Parts {
        state: web::Data::new(AppState {
            dialect: Arc::new(settings.dialect.words()),
            auth: Authenticator::open(
                &settings.auth,
                &Authorities::default(),
                settings.dialect.words(),
            )
            .unwrap(),
            synthesizer,
            voices: VoiceRegistry::new(Arc::clone(&providers)).start(),
            providers,
            recognisers: quotas.recognisers.clone(),
            openai: OpenAi::new(settings),
            llm: Arc::default(),
            rooms: RoomRegistry::new(None).start(),
            room_lists: FairQueue::new(1, Share::NONE),
            calls: CallRegistry::new(None).start(),
            hooks: HookRegistry::new(hooks, webhooks, None, None).start(),
            embedded_rooms: None,
            former: None,
            trunks: None,
            feed: Feed::new(sessions.clone()),
            sessions,
            recordings: None,
            egress: None,
            mixes: None,
            whip: WhipSessions::default(),
            models: Arc::new(Vec::new),
            model_list: Arc::new(Vec::new),
            settings: SettingsInForce::new(Vec::new()),
            draining: CancellationToken::new(),
            given: CancellationToken::new(),
            work: TaskTracker::new(),
        }),
        sockets: web::Data::new(Sockets::new(settings, services)),
        limits: web::Data::new(Limits::new(settings, &quotas)),
        origins: web::Data::new(Origins::new(&settings.server.cors_origins.0)),
    }
}

fn serve(settings: &Settings, observed: bool) -> Server {
    let Parts {
        state,
        sockets,
        limits,
        origins,
    } = parts(settings);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen::of_anybody(listener, 1024);
    let doors = move || {
        App::new()
            .app_data(state.clone())
            .app_data(sockets.clone())
            .app_data(limits.clone())
            .app_data(origins.clone())
            .wrap(from_fn(http::limit_by_address))
            .wrap(from_fn(http::allow_origins))
            .wrap(from_fn(http::track_connections))
            .configure(|app| http::configure(app, true))
    };
    // Two types of server, so that what is left out is not even asked for.
    macro_rules! run {
        ($app:expr) => {{
            let (address, server) = listen.serve($app).unwrap();
            println!("{address}");
            server
        }};
    }
    if observed {
        run!(move || doors().wrap(from_fn(http::observe)))
    } else {
        run!(doors.clone())
    }
}
