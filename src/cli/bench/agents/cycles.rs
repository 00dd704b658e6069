//! Sessions that join and leave a room one after the other, and the server's resources before and after: nothing may be
//! leaked.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;

use super::super::session::Session;
use super::super::under_test::UnderTest;
use super::super::{Failure, page};
use super::{Row, pair};

/// Those that come first: the memory that they take is kept for the others.
const FIRST_SHARE: u32 = 10;
/// How long the last ones may take to go.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(50);

/// What the server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Had {
    rooms: usize,
    participants: u64,
    sessions: u64,
    /// Files and sockets.
    open_files: usize,
    own_bytes: u64,
}

/// What they came to.
#[derive(Debug, Serialize)]
pub(super) struct Cycles {
    count: u32,
    seconds: f64,
    before: Had,
    /// After a tenth of them.
    first: Had,
    after: Had,
}

impl Cycles {
    /// Memory is not looked at: whether it grows is for people to judge.
    pub(super) const fn left_something(&self) -> bool {
        let (before, after) = (&self.before, &self.after);
        after.rooms > before.rooms
            || after.participants > before.participants
            || after.sessions > before.sessions
    }
}

pub(super) const ROWS: &[Row<Cycles>] = &[
    ("came and went", |c| {
        format!("{} in {:.1} s", c.count, c.seconds)
    }),
    ("sessions, rooms, participants before", |c| {
        c.before.counts()
    }),
    ("the same afterwards", |c| c.after.counts()),
    ("open files before, after a tenth, afterwards", |c| {
        let all = [c.before, c.first, c.after];
        all.map(|had| had.open_files.to_string()).join(" / ")
    }),
    ("memory before, after a tenth, afterwards, MB", |c| {
        let all = [c.before, c.first, c.after];
        all.map(|had| format!("{:.1}", had.own_bytes as f64 / 1e6))
            .join(" / ")
    }),
];

impl Had {
    fn counts(&self) -> String {
        format!("{}, {}, {}", self.sessions, self.rooms, self.participants)
    }
}

/// `GET /rtc/rooms`.
#[derive(Deserialize)]
struct Rooms {
    rooms: Vec<Room>,
}

#[derive(Deserialize)]
struct Room {
    num_participants: u64,
}

/// Has so many sessions come and go.
pub(super) async fn come_and_go(
    server: &UnderTest,
    count: u32,
    stop: &CancellationToken,
) -> Result<Cycles, Failure> {
    let before = settled(server, None).await?;
    eprintln!("{count} sessions come and go");
    let url = format!("ws://{}/ws", server.address);
    let began = Instant::now();
    let first_ones = count.div_ceil(FIRST_SHARE);
    let (mut done, mut first) = (0, before);
    while done < count && !stop.is_cancelled() {
        let room = format!("cycle-{done}");
        let session = Session::open(&url, pair::config(&room)).await;
        let session = session.map_err(|error| Failure::work(format!("{room}: {error}")))?;
        session.close().await;
        done += 1;
        if done == first_ones {
            first = settled(server, Some(before)).await?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Cycles {
        count: done,
        seconds,
        before,
        first,
        after: settled(server, Some(before)).await?,
    })
}

/// What the server has when everybody has gone, or does not go: as little as before, if there is a before.
async fn settled(server: &UnderTest, before: Option<Had>) -> Result<Had, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = look(server).await?;
        let (rooms, sessions) = before.map_or((0, 0), |before| (before.rooms, before.sessions));
        let is_settled = now.rooms <= rooms && now.sessions <= sessions;
        if is_settled || Instant::now() >= deadline {
            return Ok(now);
        }
        sleep(LOOK).await;
    }
}

async fn look(server: &UnderTest) -> Result<Had, Failure> {
    let of = |path: &'static str| async move {
        let page = page(&server.address, path).await;
        page.map_err(|error| Failure::work(format!("http://{}{path}: {error}", server.address)))
    };
    let rooms: Rooms = serde_json::from_str(&of("/rtc/rooms").await?).map_err(Failure::work)?;
    let metrics = of("/metrics").await?;
    let sessions = metrics
        .lines()
        .find_map(|line| line.strip_prefix("vivavoce_sessions ")?.trim().parse().ok());
    Ok(Had {
        participants: rooms.rooms.iter().map(|room| room.num_participants).sum(),
        rooms: rooms.rooms.len(),
        sessions: sessions.ok_or_else(|| Failure::work("/metrics does not count sessions"))?,
        open_files: server.open_files().map_err(Failure::work)?,
        own_bytes: server.usage().map_err(Failure::work)?.own_bytes,
    })
}
