//! A network in front of a server's media port: it loses and delays datagrams by a seed, or drops all. Clients reach the
//! server only through it; those that came after [`Network::spare_newcomers`] are not affected.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::task::AbortOnDropHandle;

/// Where it stands.
const ADDRESS: &str = "127.0.0.2";

/// What happens to a datagram.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// Of each datagram, 0 to 1.
    pub loss: f32,
    /// At most so long, evenly spread.
    pub jitter: Duration,
    /// What goes through to each client in a second, in bits; what waits longer than a moment for its turn is lost.
    pub bits_per_second: Option<u32>,
}

impl Weather {
    /// Nothing happens to it.
    pub const FAIR: Self = Self {
        loss: 0.0,
        jitter: Duration::ZERO,
        bits_per_second: None,
    };
}

/// The longest that a datagram waits for its turn.
const QUEUE: Duration = Duration::from_millis(300);

/// See the module. Dropping it lets nothing through.
pub struct Network {
    port: String,
    sky: Arc<Sky>,
    over_tcp: Option<AbortOnDropHandle<()>>,
    _carrier: AbortOnDropHandle<()>,
}

struct Sky {
    weather: Mutex<Weather>,
    luck: Mutex<fastrand::Rng>,
    down: AtomicBool,
    spares: AtomicBool,
    /// How often it has forgotten everybody.
    forgot: AtomicU64,
    seen: AtomicU64,
    lost: AtomicU64,
}

impl Network {
    /// A network at a port that is free here and there.
    pub async fn open(weather: Weather, seed: u64) -> Self {
        let inside = inside().await;
        loop {
            let front = UdpSocket::bind((ADDRESS, 0)).await.unwrap();
            let port = front.local_addr().unwrap().port();
            let server = SocketAddr::new(inside, port);
            if UdpSocket::bind(server).await.is_err() {
                continue;
            }
            let sky = Arc::new(Sky {
                weather: Mutex::new(weather),
                luck: Mutex::new(fastrand::Rng::with_seed(seed)),
                down: AtomicBool::new(false),
                spares: AtomicBool::new(false),
                forgot: AtomicU64::new(0),
                seen: AtomicU64::new(0),
                lost: AtomicU64::new(0),
            });
            let carrier = tokio::spawn(carry(Arc::new(front), server, Arc::clone(&sky)));
            return Self {
                port: port.to_string(),
                sky,
                over_tcp: None,
                _carrier: AbortOnDropHandle::new(carrier),
            };
        }
    }

    /// Settings of the server that stands behind it.
    pub fn settings(&self) -> [(&str, &str); 2] {
        [
            ("RTC_UDP_PORT", &self.port),
            ("RTC_ADVERTISED_ADDRESSES", ADDRESS),
        ]
    }

    /// Lets connections of TCP through, whatever happens to datagrams: the port for `RTC_TCP_PORT`.
    pub async fn over_tcp(&mut self) -> String {
        let inside = inside().await;
        let (front, server) = loop {
            let front = TcpListener::bind((ADDRESS, 0)).await.unwrap();
            let server = SocketAddr::new(inside, front.local_addr().unwrap().port());
            if TcpListener::bind(server).await.is_ok() {
                break (front, server);
            }
        };
        let carrier = tokio::spawn(async move {
            loop {
                let (mut client, _) = front.accept().await.unwrap();
                let Ok(mut server) = TcpStream::connect(server).await else {
                    continue;
                };
                tokio::spawn(async move {
                    // Ends when either side has closed.
                    let _ended = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        self.over_tcp = Some(AbortOnDropHandle::new(carrier));
        server.port().to_string()
    }

    /// What happens from now on.
    pub fn turn(&self, weather: Weather) {
        *self.sky.weather.lock().unwrap() = weather;
    }

    /// Whether nothing goes through.
    pub fn down(&self, down: bool) {
        self.sky.down.store(down, SeqCst);
    }

    /// Addresses that were not seen before have fair weather, whatever happens to the others.
    pub fn spare_newcomers(&self) {
        self.sky.spares.store(true, SeqCst);
    }

    /// As a NAT that has started anew: what a client sends comes from another port from now on, and what is sent to the former
    /// one arrives nowhere.
    pub fn forget(&self) {
        self.sky.forgot.fetch_add(1, SeqCst);
    }

    /// Datagrams that were not spared, and how many of them were lost.
    pub fn count(&self) -> (u64, u64) {
        (self.sky.seen.load(SeqCst), self.sky.lost.load(SeqCst))
    }
}

/// The address from which a server serves one that is none of its own (`rtc.advertised_addresses`).
async fn inside() -> std::net::IpAddr {
    let probe = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    let far = probe.connect("192.0.2.1:9").await;
    far.expect("a default route, which LiveKit's clients need too");
    probe.local_addr().unwrap().ip()
}

impl Sky {
    /// How long a datagram is on its way; `None` is for ever.
    fn delay(&self) -> Option<Duration> {
        self.seen.fetch_add(1, SeqCst);
        let weather = *self.weather.lock().unwrap();
        let (lost, late) = {
            let mut luck = self.luck.lock().unwrap();
            (luck.f32() < weather.loss, luck.f32())
        };
        if lost || self.down.load(SeqCst) {
            self.lost.fetch_add(1, SeqCst);
            return None;
        }
        Some(weather.jitter.mul_f32(late))
    }
}

/// How datagrams of one client go to the server.
#[derive(Clone)]
struct Way {
    socket: Arc<UdpSocket>,
    spared: bool,
}

async fn carry(front: Arc<UdpSocket>, server: SocketAddr, sky: Arc<Sky>) {
    let mut ways: HashMap<SocketAddr, Way> = HashMap::new();
    let mut answers = Vec::new();
    let mut forgot = 0;
    let mut buffer = [0; 2_048];
    loop {
        // A receiver that has gone is told here (ICMP).
        let Ok((length, client)) = front.recv_from(&mut buffer).await else {
            continue;
        };
        let forgotten = sky.forgot.load(SeqCst);
        if forgotten != forgot {
            forgot = forgotten;
            ways.clear();
            answers.clear();
        }
        let way = match ways.get(&client) {
            Some(way) => way.clone(),
            None => {
                let way = Way {
                    socket: Arc::new(UdpSocket::bind("0.0.0.0:0").await.unwrap()),
                    spared: sky.spares.load(SeqCst),
                };
                ways.insert(client, way.clone());
                let back = back(way.clone(), Arc::clone(&front), client, Arc::clone(&sky));
                answers.push(AbortOnDropHandle::new(tokio::spawn(back)));
                way
            }
        };
        pass(&way.socket, server, &buffer[..length], way.spared, &sky);
    }
}

async fn back(way: Way, front: Arc<UdpSocket>, client: SocketAddr, sky: Arc<Sky>) {
    let mut buffer = [0; 2_048];
    let mut free_at = Instant::now();
    loop {
        let Ok((length, _)) = way.socket.recv_from(&mut buffer).await else {
            continue;
        };
        let rate = sky.weather.lock().unwrap().bits_per_second;
        let rate = rate.filter(|_| !way.spared);
        let Some(rate) = rate else {
            pass(&front, client, &buffer[..length], way.spared, &sky);
            continue;
        };
        let now = Instant::now();
        let begins = free_at.max(now);
        if begins - now > QUEUE {
            sky.seen.fetch_add(1, SeqCst);
            sky.lost.fetch_add(1, SeqCst);
            continue;
        }
        let bits = length as f64 * 8.0;
        free_at = begins + Duration::from_secs_f64(bits / f64::from(rate));
        let (front, bytes, sky) = (
            Arc::clone(&front),
            buffer[..length].to_vec(),
            Arc::clone(&sky),
        );
        tokio::spawn(async move {
            tokio::time::sleep_until(free_at.into()).await;
            pass(&front, client, &bytes, false, &sky);
        });
    }
}

fn pass(socket: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8], spared: bool, sky: &Sky) {
    let delay = if spared {
        Some(Duration::ZERO)
    } else {
        sky.delay()
    };
    match delay {
        None => {}
        // What cannot be sent is lost as on any network.
        Some(Duration::ZERO) => drop(socket.try_send_to(bytes, to)),
        Some(delay) => {
            let (socket, bytes) = (Arc::clone(socket), bytes.to_vec());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                drop(socket.send_to(&bytes, to).await);
            });
        }
    }
}
