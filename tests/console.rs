//! The console as a person uses it: a headless Chromium with a speech file for a microphone, driven over the DevTools
//! protocol. What the page plays is taken where it goes to the loudspeaker.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use vivavoce::audio::encode::Encoded;
use vivavoce::audio::{Layout, Pcm, SampleRate, wav};

use crate::auth;
use crate::examples::in_repository;
use crate::harness::*;
use crate::inspect::{READS, opened};
use crate::realtime::ChatServer;
use crate::rooms;
use crate::rooms::client::Kind;
use crate::session::client::{Session, with};
use crate::session::recorded::{hears, recording, stored};
use crate::session::sound::{WIDE, chopped};
use crate::telephone::rig::sipp::{Scenario, Sipp};
use crate::telephone::{Exchange, PHONE, ROOM};
use crate::webhooks;

/// What a page ought not to cause: exceptions, lines on the console, violations of its policy, failed requests.
const COMPLAINTS: [&str; 3] = [
    "Runtime.exceptionThrown",
    "Runtime.consoleAPICalled",
    "Log.entryAdded",
];

#[actix_web::test]
async fn what_is_said_to_the_console_is_on_the_page_and_what_it_says_is_understood() {
    // So long without a pause that a recogniser which hears twice before it says what it hears so far has the time on a busy
    // machine, too.
    let server = Server::start_with(&[("LOCAL_STT_PRELOAD", "true")]);
    let said = "Please call me back on Monday morning because the weather is very nice in the summer and we would like to go to \
                the beach with all of our friends before the end of the week.";
    let browser = Chromium::hearing(&server, said).await;
    let mut page = browser.open(&server, "talk").await;
    page.until("vivavoce.settings.voice.options.length > 50")
        .await;
    page.connect().await;

    // Each partial transcript is there until the next one, which on a busy machine is not as long as between two looks. How many
    // words the first one has is up to the recogniser, which hears less often there.
    page.evaluate(
        "window.partials = []; new MutationObserver(() => partials.push($('interim').textContent))\
         .observe($('interim'), {childList: true, characterData: true, subtree: true})",
    )
    .await;
    page.click("#mic").await;
    let partial = page.until("partials.find((text) => text.trim())").await;
    let partial = partial.as_str().unwrap();
    assert!(
        words_in_order(&words(said), &words(partial)) >= 1,
        "the partial transcript is {partial:?}"
    );
    page.until("document.querySelector('#turns .turn small')")
        .await;
    let heard = page.text("#turns .turn").await;
    assert!(share_of_words(said, &heard) >= 0.8, "heard {heard:?}");
    // The microphone, the speech and the end of its turn.
    for colour in ["in", "good", "bad"] {
        page.until_drawn(colour).await;
    }
    let nothing = page.evaluate(&drawn_in("time", "out")).await;
    assert_eq!(nothing, json!(0), "nothing was played yet");

    page.keep_what_is_played().await;
    page.say(SENTENCES[6]).await;
    page.until("document.querySelector('#turns .said small') && vivavoce.levels.bufferedMs === 0")
        .await;
    page.until_drawn("out").await;
    let folder = tempfile::tempdir().unwrap();
    let played = folder.path().join("played.wav");
    page.write_what_was_played(&played).await;
    let understood = stdout(&vivavoce(["transcribe".as_ref(), played.as_os_str()]));
    assert!(
        share_of_words(SENTENCES[6], &understood) >= 0.8,
        "understood {understood:?}"
    );
    for number in ["to-ready", "first-audio", "to-final"] {
        let text = page.text(&format!("#{number}")).await;
        assert!(text.ends_with(" ms"), "{number}: {text}");
    }

    // To be looked at.
    let picture = in_tmp("console.png");
    page.screenshot(&picture).await;
    assert!(std::fs::metadata(&picture).unwrap().len() > 10_000);
    let asked = page.requests();
    assert!(
        asked.iter().any(|url| url.ends_with("/ws")) && asked.len() >= 3,
        "{asked:?}"
    );
    let host = server.url.strip_prefix("http").unwrap();
    for url in asked {
        let own = ["http", "ws", "blob:http"].map(|scheme| format!("{scheme}{host}/"));
        assert!(
            own.iter().any(|own| url.starts_with(own.as_str())) || url.starts_with("data:"),
            "the page asks {url}"
        );
    }
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

/// The page of `docs/start/browser.md`, which the tests of the book only read: it needs somebody who speaks.
#[actix_web::test]
async fn the_page_of_the_book_hears_who_speaks_to_it_and_answers() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
        .to_string();
    let origin = format!("http://127.0.0.1:{port}");
    let server = Server::start_with(&[
        ("SERVER_CORS_ORIGINS", &origin),
        ("LOCAL_STT_PRELOAD", "true"),
    ]);
    let book = std::fs::read_to_string(in_repository("docs/start/browser.md")).unwrap();
    let (_, html) = book.split_once("```html file=\"index.html\"").unwrap();
    let (html, _) = html.split_once("```").unwrap();
    let (_, html) = html.split_once('\n').unwrap();
    let folder = tempfile::tempdir().unwrap();
    let address = server.url.trim_start_matches("http://");
    let html = html.replace("127.0.0.1:3001", address);
    std::fs::write(folder.path().join("index.html"), html).unwrap();
    let mut files = Command::new("python3")
        .args(["-m", "http.server", "--bind", "127.0.0.1", &port])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the page is not served", || {
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    })
    .await;
    let browser = Chromium::hearing(&server, SENTENCES[1]).await;
    let mut page = browser.open_at(&origin).await;
    // The button is there before the page's script, a module, has run.
    page.until("document.readyState === 'complete' && !!document.querySelector('button')")
        .await;
    page.click("button").await;
    page.until("document.querySelector('pre').textContent.includes('you: ')")
        .await;
    let shown = page.text("pre").await;
    assert!(share_of_words(SENTENCES[1], &shown) >= 0.7, "{shown}");
    assert!(
        !shown.contains("error") && !shown.contains("closed"),
        "{shown}"
    );
    let _ = files.kill();
    let _ = files.wait();
}

#[actix_web::test]
async fn the_console_falls_silent_when_cleared_shows_markup_as_text_and_says_when_the_server_is_gone()
 {
    let server = Server::start();
    let browser = Chromium::hearing(&server, "Nothing.").await;
    let mut page = browser.open(&server, "talk").await;
    page.connect().await;

    let hostile =
        "<img src=x onerror=document.title='caught'> is what I say, and I go on for quite a while.";
    page.say(hostile).await;
    page.until("$('activity').textContent === 'plays speech'")
        .await;
    page.click("#clear").await;
    page.until("document.querySelector('#turns .said small')?.textContent.startsWith('interrupted') && vivavoce.levels.bufferedMs === 0")
        .await;
    assert!(page.text("#to-clear").await.ends_with(" ms"));
    assert!(page.text("#turns .said").await.starts_with(hostile));
    assert_eq!(
        page.evaluate("document.querySelectorAll('img').length")
            .await,
        json!(0)
    );
    assert_eq!(page.complaints(), Vec::<&Value>::new());

    drop(server);
    page.until("$('alert').textContent.includes('1006') && $('mic').disabled")
        .await;
    page.click("#connect").await;
    page.until("$('alert').textContent.includes('does not answer') && $('connect').textContent === 'Connect'")
        .await;
}

#[actix_web::test]
async fn the_console_says_why_a_socket_or_the_microphone_is_refused() {
    let server = Server::start_with(&[("LIMITS_SESSIONS", "1")]);
    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "talk").await;

    let only = format!("{}/ws", server.url.replacen("http", "ws", 1));
    let (mut only, _) = tokio_tungstenite::connect_async(only).await.unwrap();
    page.click("#connect").await;
    page.until("$('alert').textContent.includes('limits.sessions')")
        .await;
    only.close(None).await.unwrap();
    while only.next().await.is_some() {}

    page.connect().await;
    page.click("#mic").await;
    page.until("$('alert').textContent.startsWith('No microphone') && !$('mic').disabled")
        .await;
}

#[actix_web::test]
async fn the_console_shows_and_plays_a_recording_with_what_was_said_beside_it() {
    let server = Server::start_with(&[("NULL_ENABLED", "true")]);
    let hostile = "<img src=x onerror=document.title='caught'> was said";
    let mut session = Session::open(&server, recording("call-17")).await;
    hears(&session, 2).await;
    session.speak("a", hostile).await;
    session.completion_of("a").await;
    session.close().await;
    stored(&server, "call-17").await;

    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "recordings").await;
    page.until("document.querySelector('#recordings button')")
        .await;
    assert!(page.text("#recordings").await.starts_with("call-17 · "));
    page.find("beach").await;
    page.until("$('found').textContent === 'There are none.'")
        .await;
    page.find("Said WAS").await;
    page.until("document.querySelector('#recordings .track')?.textContent.includes('said')")
        .await;
    page.click("#recordings > li > button").await;
    page.until("!$('player').hidden && document.querySelectorAll('#transcript button').length > 1")
        .await;
    let lines = page.text("#transcript").await;
    assert!(
        lines.contains("heard") && lines.contains(hostile),
        "{lines}"
    );
    let images = page
        .evaluate("document.querySelectorAll('img').length")
        .await;
    assert_eq!(images, json!(0));
    for colour in ["in", "out", "bad"] {
        page.until_drawn_on("wave", colour).await;
    }

    // A line moves the position to where it begins, by mouse or keyboard, and playing goes on from there.
    let begins =
        page.evaluate("vivavoce.recordings.opened.lines.find((line) => line.who === 'said').at");
    let begins = begins.await.as_f64().unwrap();
    assert!(begins > 1.0, "{begins}");
    page.click("#transcript .said").await;
    page.until("document.querySelector('#transcript .said').classList.contains('now')")
        .await;
    assert_eq!(
        page.evaluate("vivavoce.position()").await.as_f64(),
        Some(begins)
    );
    page.screenshot(&in_tmp("recording-light.png")).await;
    let dark = json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]});
    page.call("Emulation.setEmulatedMedia", dark).await;
    page.until_drawn_on("wave", "out").await;
    page.screenshot(&in_tmp("recording-dark.png")).await;
    page.click("#play").await;
    page.until("$('play').textContent === 'Pause' && Number($('wave').ariaValueNow) > 0")
        .await;
    page.until("$('play').textContent === 'Play'").await;
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

#[actix_web::test]
async fn the_console_shows_rooms_mutes_tracks_and_removes_people_when_asked_twice() {
    let server = Server::start();
    let mut ann = rooms::join(&server, Kind::Python, "kitchen <b>", "ann").await;
    let mut bob = rooms::join(&server, Kind::Python, "kitchen <b>", "bob").await;
    ann.publish(440).await;
    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "rooms").await;
    page.until("$('rooms').textContent.includes('kitchen <b>2 in it') || $('rooms').textContent.includes('kitchen <b> 2 in it')").await;
    page.click("#rooms button").await;
    page.until("$('people').textContent.includes('ann') && $('people').textContent.includes('bob') && $('people').textContent.includes('audio/opus')").await;
    page.click("#people .track button").await;
    ann.next("track_muted", &json!({})).await;
    page.until("$('people').querySelector('.track').textContent.includes('muted') && $('people').querySelector('.track button').textContent === 'Unmute'")
        .await;
    let picture = in_tmp("console-rooms.png");
    page.screenshot(&picture).await;
    page.click("#people .track button").await;
    ann.next("track_unmuted", &json!({})).await;

    page.until("$('people').querySelector('.track button').textContent === 'Mute'")
        .await;

    // Somebody comes while a button is pressed: it is there until it is let go.
    let button = page.middle("#people .track button").await;
    page.mouse("mousePressed", &button).await;
    let cid = rooms::join(&server, Kind::Python, "kitchen <b>", "cid").await;
    page.until("$('rooms').textContent.includes('3 in it')")
        .await;
    // Each look ends with the agent workers.
    page.evaluate(
        "new Promise((done) => {
            const looks = () => performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/sessions')).length;
            const before = looks();
            const timer = setInterval(() => { if (looks() > before + 1) { clearInterval(timer); done(0); } }, 50);
        })",
    )
    .await;
    page.mouse("mouseReleased", &button).await;
    ann.next("track_muted", &json!({})).await;
    page.until("$('people').textContent.includes('cid')").await;
    cid.leave().await;
    page.until(
        "$('rooms').textContent.includes('2 in it') && !$('people').textContent.includes('cid')",
    )
    .await;

    // A first click only asks.
    page.click(r#"[aria-label="Remove bob"]"#).await;
    page.until("$('people').textContent.includes('Sure?')")
        .await;
    assert_eq!(bob.count("disconnected", &json!({})), 0);
    page.click(r#"[aria-label="Remove bob"]"#).await;
    bob.wait("disconnected", &json!({})).await;
    page.until(
        "!$('people').textContent.includes('bob') && $('people').textContent.includes('ann')",
    )
    .await;
    ann.leave().await;
    page.until("$('people').textContent === 'Nobody is in it.'")
        .await;
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

#[actix_web::test]
async fn the_console_shows_calls_while_they_last_and_why_they_ended() {
    let mut telephone = Sipp::start(Scenario::answers().ended()).await;
    let exchange = Exchange::start();
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    let browser = Chromium::start(None);
    let mut page = browser.open(&exchange.server, "calls").await;
    for shown in [PHONE, ROOM, "outbound", "active", "PCMU", id.as_str()] {
        page.until(&format!("$('calls').textContent.includes('{shown}')"))
            .await;
    }
    page.screenshot(&in_tmp("console-calls.png")).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
    page.until(
        "$('calls').textContent.includes('hangup') && $('calls').textContent.includes('local')",
    )
    .await;
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

#[actix_web::test]
async fn the_console_shows_what_was_signalled_in_calls_that_were_refused_or_failed() {
    let exchange = Exchange::with(&[("SIP_MEDIA_ENCRYPTION", "require")]);
    let refused = Scenario::is_refused("", 488);
    let mut caller = Sipp::call(&refused, "+14155550199", &exchange.address());
    caller.passed().await;
    let busy = Scenario::called().reply("486 Busy Here").receive("ACK");
    let mut callee = Sipp::start(busy).await;
    exchange.call(&callee.address()).await;
    callee.passed().await;
    let browser = Chromium::start(None);
    let mut page = browser.open(&exchange.server, "calls").await;
    page.until(
        "$('refused').textContent.includes('488') && $('calls').textContent.includes('busy')",
    )
    .await;
    for (list, lines) in [
        (
            "#refused",
            [
                "← received INVITE sip:…99@",
                "→ sent 488 Not Acceptable Here",
                "← received ACK",
            ],
        ),
        (
            "#calls",
            [
                "→ sent INVITE sip:…23@",
                "← received 486 Busy Here",
                "→ sent ACK",
            ],
        ),
    ] {
        page.click(&format!("{list} button")).await;
        page.until(&format!("document.querySelector('{list} .ladder')"))
            .await;
        let ladder = page.text(&format!("{list} .ladder")).await;
        let ladder = ladder.split_whitespace().collect::<Vec<_>>().join(" ");
        for line in lines {
            assert!(ladder.contains(line), "{line}: {ladder}");
        }
        assert!(ladder.contains("udp 127.0.0.1:"), "{ladder}");
        assert!(!ladder.contains("415555"), "{ladder}");
        page.screenshot(&in_tmp(&format!("console-ladder-{}.png", &list[1..])))
            .await;
        page.click(&format!("{list} button")).await;
        page.until(&format!("!document.querySelector('{list} .ladder')"))
            .await;
    }
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

#[actix_web::test]
async fn the_console_shows_agent_workers_and_their_jobs() {
    let server = rooms::keyed_server();
    let mut worker = rooms::workers::Bare::registered(&server, &json!({}), "cook").await;
    let agents = json!({"agents": [{"agentName": "cook"}]});
    rooms::workers::create(&server, "kitchen", agents).await;
    let job = worker.offered().await;
    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "rooms").await;
    for shown in ["cook", "available", "kitchen", "offered", job.as_str()] {
        page.until(&format!("$('workers').textContent.includes('{shown}')"))
            .await;
    }
    page.screenshot(&in_tmp("console-workers.png")).await;
    drop(worker);
    page.until("$('workers').textContent.includes('Without a worker')")
        .await;
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

#[actix_web::test]
async fn the_console_shows_sessions_as_they_come_and_each_turn_with_what_took_longest() {
    let server = Server::start_with(&[("NULL_ENABLED", "true")]);
    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "sessions").await;
    page.until("$('counts').textContent.startsWith('0 live')")
        .await;
    let wanted = with(
        recording("call-17"),
        json!({"recording": false, "vad": {"silence_ms": 300}}),
    );
    let mut session = Session::open(&server, wanted).await;
    page.until("$('list').textContent.includes('call-17')")
        .await;
    let sound = spoken(&server).await;
    session.hear_turns(vec![sound]).await;
    // The agent is what takes its time.
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    session.speak("a", "An answer, and not a long one.").await;
    page.until("$('list').textContent.includes('speaks')").await;
    session.completion_of("a").await;
    page.until("/[0-9] ms/.test(document.querySelector('#list [data-is=answer]').textContent)")
        .await;

    // By keyboard, from the list to the session.
    page.evaluate("document.getElementById('list').focus()")
        .await;
    for key in ["ArrowDown", "Enter"] {
        page.press(key).await;
    }
    page.until("$('waterfall')?.textContent.includes('slowest: agent')")
        .await;
    assert_eq!(page.text("#session-title").await, "call-17");
    let events = page.text("#events").await;
    for told in [
        "speech_start",
        "final",
        "turn_end",
        "speak",
        "An answer",
        "tts_started",
        "turn_metrics",
    ] {
        assert!(events.contains(told), "{told}: {events}");
    }
    for colour in ["in", "good", "bad", "out"] {
        page.until_drawn_on("lanes", colour).await;
    }
    page.screenshot(&in_tmp("console-session.png")).await;
    // A first click only asks.
    page.click("#end").await;
    page.until("$('end').textContent === 'Sure?'").await;
    page.click("#end").await;
    assert_eq!(session.closed().await, 1000);
    page.until("$('facts').textContent.includes('ended') && $('end').hidden")
        .await;
    page.go("sessions").await;
    page.until("$('counts').textContent === '0 live, 1 ended lately'")
        .await;
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

#[actix_web::test]
async fn the_console_shows_when_a_language_model_wrote_what_a_session_said() {
    let model = ChatServer::start();
    let server = Server::start_with(&[
        ("NULL_ENABLED", "true"),
        ("LLM_URL", &model.url()),
        ("LLM_MODEL", "small"),
    ]);
    let wanted = with(
        recording("led-17"),
        json!({
            "recording": false, "vad": {"silence_ms": 300},
            "agent": {"llm": {"instructions": "You are brief."}, "greeting": "Good morning."},
        }),
    );
    let mut session = Session::open(&server, wanted).await;
    session.next("response_done").await;
    let sound = spoken(&server).await;
    for _ in 0..2 {
        session.hear_turns(vec![sound.clone()]).await;
        let done = session.next("response_done").await;
        assert_eq!(done["status"], "completed", "{done}");
    }
    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "sessions/1").await;
    page.until("$('waterfall')?.querySelectorAll('.fall').length === 2")
        .await;
    let steps = page
        .evaluate("[...document.querySelector('.fall').querySelectorAll('.step')].map((one) => one.firstChild.textContent)")
        .await;
    assert_eq!(
        steps,
        json!([
            "pause",
            "recogniser",
            "language model",
            "first sentence",
            "voice",
            "is played"
        ])
    );
    let facts = page.text("#facts").await;
    assert!(facts.contains("a language model"), "{facts}");
    let events = page.text("#events").await;
    for told in ["response_started", "response_done", "7 out", "You said: "] {
        assert!(events.contains(told), "{told}: {events}");
    }
    page.until_drawn_on("lanes", "think").await;
    for (width, height) in [(1400, 1000), (820, 1100), (390, 844)] {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        page.call("Emulation.setDeviceMetricsOverride", size).await;
        for scheme in ["light", "dark"] {
            let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
            page.call("Emulation.setEmulatedMedia", media).await;
            page.until_drawn_on("lanes", "think").await;
            page.screenshot(&in_tmp(&format!("console-led-{width}-{scheme}.png")))
                .await;
        }
    }
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

#[actix_web::test]
async fn the_console_shows_webhooks_that_fail_and_sends_them_again_when_told_to() {
    // A receiver that is not there yet.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}/");
    let mut settings = webhooks::settings(&url).to_vec();
    settings.push(("NULL_ENABLED", "true"));
    let server = Server::start_with(&settings);
    let session = Session::open(
        &server,
        with(recording("call-17"), json!({"recording": false})),
    )
    .await;
    session.close().await;
    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "webhooks").await;
    page.until("/session.ended.*call-17.*unavailable/.test($('webhooks').textContent)")
        .await;
    page.screenshot(&in_tmp("console-webhooks.png")).await;
    // From then on it is seconds until it would be sent again by itself: what comes was asked for.
    page.until(
        "[...$('webhooks').querySelectorAll('.num')].some((one) => Number(one.textContent) >= 5)",
    )
    .await;
    let mut receiver = webhooks::Receiver::start(port, 0);
    page.click("#webhooks button").await;
    assert_eq!(receiver.next()["body"]["event"], "session.ended");
    page.until("$('webhook-counts').textContent.startsWith('None waits')")
        .await;
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

#[actix_web::test]
async fn the_console_asks_for_a_token_and_offers_what_that_may() {
    let server = auth::with_secrets(&[("AUTH_READ_SECRET", READS)]);
    let _session = opened(&server, auth::OF_A, "of-a").await;
    let _other = opened(&server, auth::OF_B, "of-b").await;
    let browser = Chromium::start(None);
    let mut page = browser.open_locked(&server, "sessions").await;
    for (token, caller, sessions, may_end) in [
        (READS, "operator, read-only", "2 live", false),
        (auth::OF_A, "tenant a", "1 live", true),
    ] {
        page.evaluate("document.getElementById('token-dialog').open || document.getElementById('sign-in').click()").await;
        page.evaluate(&format!(
            "document.getElementById('token').value = '{token}'; 0"
        ))
        .await;
        page.click("#token-dialog [value=use]").await;
        page.until(&format!("$('caller').textContent === '{caller}'"))
            .await;
        page.until(&format!(
            "$('counts')?.textContent.startsWith('{sessions}')"
        ))
        .await;
        let vendors = page
            .evaluate("Boolean(document.querySelector('#views [data-view=settings]'))")
            .await;
        assert_eq!(vendors, json!(token == READS));
        page.until(
            "[...document.querySelectorAll('#list a')].some((one) => one.textContent === 'of-a')",
        )
        .await;
        page.evaluate("[...document.querySelectorAll('#list a')].find((one) => one.textContent === 'of-a').click()").await;
        page.until("$('session-title')?.textContent === 'of-a' && $('facts').hasChildNodes()")
            .await;
        let hidden = page.evaluate("document.getElementById('end').hidden").await;
        assert_eq!(hidden, json!(!may_end), "{caller}");
        page.go("sessions").await;
    }
}

/// What axe finds that is serious, and whether the page is wider than its window.
const AXE: &str = "axe.run().then(({ violations }) => [
    ...violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.target).join(' ')}`),
    ...(document.documentElement.scrollWidth > innerWidth ? [`is ${document.documentElement.scrollWidth} wide`] : []),
])";

/// Every view at a width, in light or dark; all combinations with `VIVAVOCE_LONG`.
#[actix_web::test]
async fn every_view_of_the_console_fits_and_is_for_everybody() {
    let server = Server::start_with(&[("NULL_ENABLED", "true")]);
    let mut session = Session::open(&server, recording("call-17")).await;
    hears(&session, 2).await;
    session.speak("a", "A text.").await;
    session.completion_of("a").await;
    session.close().await;
    stored(&server, "call-17").await;
    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "sessions").await;
    let axe = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(".clients/node/node_modules/axe-core/axe.min.js");
    page.evaluate(&std::fs::read_to_string(axe).unwrap()).await;
    let long = is_long();
    let mut wrong = Vec::new();
    for (width, height, scheme, always) in [
        (1400, 900, "light", true),
        (1400, 900, "dark", false),
        (820, 1100, "light", false),
        (820, 1100, "dark", false),
        (390, 844, "light", false),
        (390, 844, "dark", true),
    ] {
        if !(long || always) {
            continue;
        }
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        page.call("Emulation.setDeviceMetricsOverride", size).await;
        let scheme_is = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        page.call("Emulation.setEmulatedMedia", scheme_is).await;
        for view in VIEWS {
            page.go(view).await;
            page.until(&format!("document.querySelector('{}')", ready(view)))
                .await;
            let found = page.evaluate(AXE).await;
            for one in found.as_array().unwrap() {
                wrong.push(format!("{view} at {width}, {scheme}: {one}"));
            }
            let name = format!("console-{}-{width}-{scheme}.png", view.replace('/', "-"));
            page.screenshot(&in_tmp(&name)).await;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const VIEWS: [&str; 11] = [
    "sessions",
    "sessions/1",
    "rooms",
    "calls",
    "recordings",
    "webhooks",
    "vendors",
    "models",
    "settings",
    "log",
    "talk",
];

/// What is there once a view shows something.
fn ready(view: &str) -> &'static str {
    match view {
        "sessions" => "#list a[href]",
        "sessions/1" => "#waterfall > *",
        "rooms" => "#workers li",
        "calls" => "#registrations li",
        "recordings" => "#recordings li",
        "webhooks" => "#retry-all",
        "vendors" => "#vendors tr",
        "models" => "#models tr",
        "settings" => "#all-of-them tr",
        "log" => "#lines",
        _ => "#all-fields .group",
    }
}

/// Forty sessions that talk; five hundred with `VIVAVOCE_LONG`.
#[actix_web::test]
async fn the_list_of_many_sessions_changes_without_holding_up_the_page() {
    let count = if is_long() { 500 } else { 40 };
    let server = Server::start_with(&[("NULL_ENABLED", "true"), ("LIMITS_SESSIONS", "1000")]);
    let browser = Chromium::start(None);
    let mut page = browser.open(&server, "sessions").await;
    let mut sessions = Vec::new();
    for number in 0..count {
        let wanted = with(
            recording(&format!("call-{number}")),
            json!({"recording": false}),
        );
        sessions.push(Session::open(&server, wanted).await);
    }
    page.until(&format!(
        "$('counts').textContent.startsWith('{count} live')"
    ))
    .await;
    // What holds up a page is work for each event, or for rows that nobody sees. Both are counted: how long a task takes
    // is up to what else the machine does.
    page.evaluate(
        "globalThis.tasks = []; new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => Math.round(one.duration))))\
         .observe({ type: 'longtask' });\
         globalThis.drawn = 0; new MutationObserver(() => drawn++)\
         .observe($('space'), { attributes: true, characterData: true, childList: true, subtree: true });\
         globalThis.began = performance.now(); $('list').scrollTop = 300; 0",
    )
    .await;
    let sound = spoken(&server).await;
    for (number, session) in sessions.iter().enumerate() {
        session
            .speak(
                "a",
                &format!("This is what session {number} says for a while."),
            )
            .await;
        drop(session.hear(sound.clone()));
    }
    page.until("$('list').textContent.includes('speaks')").await;
    for _ in 0..5 {
        page.evaluate("new Promise((done) => { document.getElementById('list').scrollTop += 400; setTimeout(() => done(0), 1000); })").await;
    }
    let rows = page
        .evaluate("document.querySelectorAll('#list .row').length")
        .await;
    assert!(rows.as_u64().unwrap() < 60, "{rows} rows are there");
    let tasks = page.evaluate("tasks").await;
    let seconds = page.evaluate("(performance.now() - began) / 1000").await;
    let (seconds, drawn) = (
        seconds.as_f64().unwrap(),
        page.evaluate("drawn").await.as_f64().unwrap(),
    );
    println!(
        "{count} sessions; drawn {drawn} times in {seconds:.1} s; tasks of 50 ms and more: {tasks}"
    );
    // Once a second by the clock, once by the server's events, once for each of six movements of the list.
    assert!(drawn >= 5.0, "drawn {drawn} times in {seconds:.1} s");
    assert!(
        drawn <= 2.0 * (seconds + 1.0) + 6.0,
        "drawn {drawn} times in {seconds:.1} s"
    );
    assert_eq!(page.complaints(), Vec::<&Value>::new());
}

/// Speech, as a microphone at the socket brings it.
async fn spoken(server: &Server) -> Vec<Encoded> {
    let wanted = json!({"audio_format": "linear16", "sample_rate": 16000});
    let sound = speak(server, "I would like to know more.", wanted).await;
    let sound = sound.bytes().await.unwrap();
    let (samples, _) = sound.as_chunks();
    let samples = samples.iter().map(|bytes| i16::from_le_bytes(*bytes));
    chopped(&Pcm::new(WIDE.layout, samples.collect()), 640)
}

/// Where pictures are kept, to be looked at.
fn in_tmp(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A browser with a profile of its own. Dropping it ends its processes and removes the profile.
struct Chromium {
    child: Child,
    devtools: String,
    _folder: TempDir,
}

impl Chromium {
    /// A browser whose microphone hears this text once, and silence after it.
    async fn hearing(server: &Server, text: &str) -> Self {
        let sound = json!({"audio_format": "wav", "sample_rate": 48000});
        let sound = speak(server, text, sound).await.bytes().await.unwrap();
        Self::start(Some(&sound))
    }

    /// A browser with this sound for a microphone, or one that gives no page a microphone.
    fn start(microphone: Option<&[u8]>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(which("chromium"));
        command
            .env("TMPDIR", folder.path())
            .args([
                "--headless=new",
                "--no-sandbox",
                "--no-first-run",
                "--disable-gpu",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .args([
                "--disable-breakpad",
                "--no-proxy-server",
                "--window-size=1400,1000",
            ])
            .args([
                "--remote-debugging-port=0",
                "--use-fake-device-for-media-stream",
            ])
            .arg(format!(
                "--user-data-dir={}",
                folder.path().join("profile").display()
            ));
        match microphone {
            Some(sound) => {
                let file = folder.path().join("microphone.wav");
                std::fs::write(&file, sound).unwrap();
                command.arg("--use-fake-ui-for-media-stream").arg(format!(
                    "--use-file-for-fake-audio-capture={}%noloop",
                    file.display()
                ));
            }
            None => {
                command.arg("--deny-permission-prompts");
            }
        }
        let mut child = command
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut told = Vec::new();
        let devtools = lines.find_map(|line| {
            let found = line.split_once("listening on ws://");
            let found = found.and_then(|(_, url)| Some(url.split_once('/')?.0.to_owned()));
            told.push(line);
            found
        });
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Self {
            child,
            devtools: String::new(),
            _folder: folder,
        };
        browser.devtools = devtools
            .unwrap_or_else(|| panic!("chromium ended before it could be driven: {told:#?}"));
        browser
    }

    /// Its one tab, at this view of the server's console, once the page has run.
    async fn open(&self, server: &Server, view: &str) -> Page {
        let mut page = self.open_locked(server, view).await;
        page.until("document.querySelector('#views a') && !$('caller').hidden")
            .await;
        page
    }

    /// The same, where a token may be asked for.
    async fn open_locked(&self, server: &Server, view: &str) -> Page {
        let mut page = self
            .open_at(&format!("{}/console#/{view}", server.url))
            .await;
        page.until("globalThis.vivavoce && document.querySelector('#views a')")
            .await;
        page.evaluate("globalThis.$ = vivavoce.$; 0").await;
        page
    }

    /// Its one tab, at an address.
    async fn open_at(&self, url: &str) -> Page {
        let tabs = format!("http://{}/json/list", self.devtools);
        let tabs: Vec<Value> = client()
            .get(tabs)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let tab = tabs.iter().find(|tab| tab["type"] == "page").unwrap();
        let tab = tab["webSocketDebuggerUrl"].as_str().unwrap();
        let (socket, _) = tokio_tungstenite::connect_async(tab).await.unwrap();
        let mut page = Page {
            socket,
            calls: 0,
            events: Vec::new(),
        };
        for domain in ["Page", "Runtime", "Network", "Log"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        page.call("Page.navigate", json!({"url": url})).await;
        page
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // All of its processes, not only the first.
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A tab over the DevTools protocol: calls with answers, and the events that came between them.
struct Page {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    calls: u64,
    events: Vec<Value>,
}

impl Page {
    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let call = json!({"id": self.calls, "method": method, "params": params}).to_string();
        self.socket.send(Message::text(call)).await.unwrap();
        loop {
            let message = self.socket.next().await.unwrap().unwrap();
            let mut message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// The value of an expression; of a promise, what it resolves to.
    async fn evaluate(&mut self, expression: &str) -> Value {
        let call = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", call).await;
        let trouble = &answer["exceptionDetails"];
        assert!(trouble.is_null(), "{expression}: {trouble}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true, looking whenever the page changes and once it is loaded; its value.
    async fn until(&mut self, condition: &str) -> Value {
        let promise = format!(
            "new Promise((done) => {{
                const $ = (id) => document.getElementById(id);
                const look = () => {{ const value = {condition}; if (value) {{ changes.disconnect(); done(value); }} }};
                const changes = new MutationObserver(look);
                changes.observe(document, {{ subtree: true, childList: true, characterData: true, attributes: true }});
                addEventListener('load', look);
                look();
            }})"
        );
        if let Ok(value) = tokio::time::timeout(PATIENCE, self.evaluate(&promise)).await {
            return value;
        }
        let shown = self.text("body").await;
        panic!("the page never had {condition}; it shows {shown}");
    }

    async fn text(&mut self, selector: &str) -> String {
        let text = self
            .evaluate(&format!("document.querySelector('{selector}').innerText"))
            .await;
        text.as_str().unwrap().to_owned()
    }

    /// A click of the mouse in the middle of an element.
    async fn click(&mut self, selector: &str) {
        let middle = self.middle(selector).await;
        self.mouse("mousePressed", &middle).await;
        self.mouse("mouseReleased", &middle).await;
    }

    /// Presses or releases the button of the mouse.
    async fn mouse(&mut self, what: &str, at: &Value) {
        let mouse =
            json!({"type": what, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
        self.call("Input.dispatchMouseEvent", mouse).await;
    }

    async fn middle(&mut self, selector: &str) -> Value {
        self.evaluate(&format!(
            "(() => {{
                    const one = document.querySelector('{selector}');
                    one.scrollIntoView({{ block: 'center' }});
                    const {{ x, y, width, height }} = one.getBoundingClientRect();
                    return [x + width / 2, y + height / 2];
                }})()"
        ))
        .await
    }

    /// Looks for recordings with these words.
    async fn find(&mut self, words: &str) {
        self.click("#words").await;
        self.evaluate("document.activeElement.select()").await;
        self.call("Input.insertText", json!({"text": words})).await;
        self.click("#search button").await;
    }

    /// Goes to another view.
    async fn go(&mut self, view: &str) {
        self.evaluate(&format!("location.hash = '#/{view}'; 0"))
            .await;
        let name = view.split('/').next().unwrap();
        self.until(&format!(
            "document.querySelector('#views [aria-current]')?.dataset.view === '{name}'"
        ))
        .await;
    }

    async fn connect(&mut self) {
        self.click("#connect").await;
        self.until("$('state').textContent.startsWith('connected') && !$('mic').disabled")
            .await;
    }

    /// Presses a key.
    async fn press(&mut self, key: &str) {
        let text = if key == "Enter" { "\r" } else { "" };
        for what in ["keyDown", "keyUp"] {
            let mut event = json!({"type": what, "key": key, "code": key});
            if key == "Enter" {
                event["windowsVirtualKeyCode"] = json!(13);
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Types a text in place of the one that is there, and has it spoken.
    async fn say(&mut self, text: &str) {
        self.click("#speak textarea").await;
        self.evaluate("document.activeElement.select()").await;
        self.call("Input.insertText", json!({"text": text})).await;
        self.click("#say").await;
    }

    async fn until_drawn(&mut self, colour: &str) {
        self.until_drawn_on("time", colour).await;
    }

    async fn until_drawn_on(&mut self, canvas: &str, colour: &str) {
        self.until(&format!("{} > 50", drawn_in(canvas, colour)))
            .await;
    }

    /// Taps the page's player, with the page's own worklet for microphones.
    async fn keep_what_is_played(&mut self) {
        self.evaluate(
            "globalThis.kept = [];
            const { session } = vivavoce;
            const tap = new AudioWorkletNode(session.playing, 'capture', { numberOfOutputs: 0 });
            session.player.connect(tap);
            tap.port.onmessage = ({ data }) => kept.push(...data);
            0",
        )
        .await;
    }

    async fn write_what_was_played(&mut self, file: &Path) {
        let samples = self.evaluate("kept").await;
        let samples = samples.as_array().unwrap();
        let hz = self.evaluate("vivavoce.session.playing.sampleRate").await;
        let rate = SampleRate::new(hz.as_u64().unwrap() as u32).unwrap();
        let mut bytes = wav::header(Layout::mono(rate), Some(2 * samples.len() as u32)).to_vec();
        for sample in samples {
            bytes.extend((sample.as_i64().unwrap() as i16).to_le_bytes());
        }
        std::fs::write(file, bytes).unwrap();
    }

    async fn screenshot(&mut self, file: &Path) {
        let picture = self
            .call("Page.captureScreenshot", json!({"format": "png"}))
            .await;
        let picture = STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::write(file, picture).unwrap();
    }

    /// Addresses that the page asked for, by HTTP and by WebSocket.
    fn requests(&self) -> Vec<&str> {
        let asked = self
            .events
            .iter()
            .filter_map(|event| match event["method"].as_str()? {
                "Network.requestWillBeSent" => event["params"]["request"]["url"].as_str(),
                "Network.webSocketCreated" => event["params"]["url"].as_str(),
                _ => None,
            });
        asked.collect()
    }

    /// The events among them that are complaints.
    fn complaints(&self) -> Vec<&Value> {
        let told = self.events.iter();
        told.filter(|event| {
            COMPLAINTS
                .iter()
                .any(|complaint| event["method"] == *complaint)
        })
        .collect()
    }
}

/// An expression: how many pixels of a canvas have one of the page's colours.
fn drawn_in(canvas: &str, colour: &str) -> String {
    format!(
        "(() => {{
            const {{ width, height }} = vivavoce.$('{canvas}');
            const copy = new OffscreenCanvas(width, height).getContext('2d', {{ willReadFrequently: true }});
            copy.drawImage(vivavoce.$('{canvas}'), 0, 0);
            const {{ data }} = copy.getImageData(0, 0, width, height);
            const colour = vivavoce.palette['{colour}'].match(/\\d+/g).map(Number);
            let count = 0;
            for (let at = 0; at < data.length; at += 4) count += colour.every((part, n) => data[at + n] === part);
            return count;
        }})()"
    )
}
