//! A network between clients and server that loses, delays and reorders datagrams by a seed, or drops all of them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;

use vivavoce_rooms::Sockets;

/// What happens to datagrams.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// Fraction lost, 0 to 1.
    pub loss: f32,
    /// The maximum delay, uniformly distributed.
    pub jitter: Duration,
}

/// The network in front of the server's own sockets.
pub struct Network {
    down: Arc<AtomicBool>,
}

impl Network {
    /// Sockets of a server that clients reach only through this network.
    pub async fn around(weather: Weather, seed: u64) -> (Sockets, Self) {
        let inside: IpAddr = [127, 0, 0, 2].into();
        let outside: IpAddr = [127, 0, 0, 3].into();
        loop {
            let sockets = Sockets::bind(&[(inside, outside)], 0).unwrap();
            let advertised = sockets.advertised()[0];
            let Ok(front) = UdpSocket::bind(advertised).await else {
                continue;
            };
            let down = Arc::new(AtomicBool::new(false));
            let server = SocketAddr::new(inside, advertised.port());
            tokio::spawn(carry(
                Arc::new(front),
                server,
                weather,
                seed,
                Arc::clone(&down),
            ));
            return (sockets, Self { down });
        }
    }

    pub fn down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }
}

async fn carry(
    front: Arc<UdpSocket>,
    server: SocketAddr,
    weather: Weather,
    seed: u64,
    down: Arc<AtomicBool>,
) {
    let mut ways: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut luck = fastrand::Rng::with_seed(seed);
    let mut buffer = [0; 2_048];
    loop {
        let Ok((length, client)) = front.recv_from(&mut buffer).await else {
            continue;
        };
        let way = match ways.get(&client) {
            Some(way) => Arc::clone(way),
            None => {
                let way = Arc::new(UdpSocket::bind("127.0.0.4:0").await.unwrap());
                ways.insert(client, Arc::clone(&way));
                let (back, front) = (Arc::clone(&way), Arc::clone(&front));
                let (mut luck, down) = (luck.fork(), Arc::clone(&down));
                tokio::spawn(async move {
                    let mut buffer = [0; 2_048];
                    while let Ok((length, _)) = back.recv_from(&mut buffer).await {
                        pass(&front, client, &buffer[..length], weather, &mut luck, &down);
                    }
                });
                way
            }
        };
        pass(&way, server, &buffer[..length], weather, &mut luck, &down);
    }
}

fn pass(
    socket: &Arc<UdpSocket>,
    to: SocketAddr,
    bytes: &[u8],
    weather: Weather,
    luck: &mut fastrand::Rng,
    down: &AtomicBool,
) {
    let delay = weather.jitter.mul_f32(luck.f32());
    if luck.f32() < weather.loss || down.load(Ordering::SeqCst) {
        return;
    }
    if delay.is_zero() {
        let _ = socket.try_send_to(bytes, to);
        return;
    }
    let (socket, bytes) = (Arc::clone(socket), bytes.to_vec());
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        let _ = socket.send_to(&bytes, to).await;
    });
}
