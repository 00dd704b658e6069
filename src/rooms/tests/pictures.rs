//! Pictures leave as a whole: a connection is polled once for all packets of one.

use std::net::SocketAddr;
use std::time::Duration;

use str0m::media::{MediaKind, Mid};
use str0m_netem::NetemConfig;

use super::stage::{STEP, Stage};
use crate::ssrcs::of_rtp;

/// Somebody whose camera and microphone somebody else sees and hears.
struct Scene {
    stage: Stage,
    camera: usize,
    viewer: usize,
    pictures: Mid,
    sound: Mid,
}

impl Scene {
    fn new() -> Self {
        let mut stage = Stage::new(NetemConfig::new());
        let (camera, viewer) = (stage.join("a"), stage.join("b"));
        stage.run(Duration::from_secs(1), &[]);
        let sound = stage.publish(camera, "mic");
        stage.run(Duration::from_secs(1), &[]);
        let pictures = stage.publish_kind(camera, "cam", MediaKind::Video);
        stage.run(Duration::from_secs(1), &[]);
        let mut scene = Self {
            stage,
            camera,
            viewer,
            pictures,
            sound,
        };
        scene.film(50, 4);
        scene
    }

    /// Films so many pictures, one every 20 ms.
    fn film(&mut self, pictures: usize, packets: u64) {
        for _ in 0..pictures {
            self.stage.film(self.camera, self.pictures, packets);
            self.stage.run(4 * STEP, &[]);
        }
    }

    /// Films a picture, and lets all but the last of its packets come. The last one is given back.
    fn film_without_end(&mut self) -> Vec<u8> {
        self.stage.film(self.camera, self.pictures, 4);
        let mut packets = self.stage.sent_by(self.camera);
        packets.retain(|packet| of_rtp(packet).is_some());
        let last = packets.pop().unwrap();
        assert_eq!(packets.len(), 3);
        for packet in packets {
            self.stage.deliver(self.camera, &packet);
        }
        last
    }

    /// Packets of media that have left for the viewer since the last call, and do not come there.
    fn left(&mut self) -> usize {
        self.take_left().len()
    }

    fn take_left(&mut self) -> Vec<Vec<u8>> {
        let viewer: SocketAddr = self.stage.clients[self.viewer].address;
        let datagrams = std::mem::take(&mut self.stage.bench.datagrams);
        let media = datagrams.iter().filter(|datagram| {
            datagram.destination == viewer && of_rtp(&datagram.contents).is_some()
        });
        media.map(|datagram| datagram.contents.to_vec()).collect()
    }

    /// Films a picture that comes to the server.
    fn film_now(&mut self, packets: u64) {
        self.stage.film(self.camera, self.pictures, packets);
        self.stage.deliver_all(self.camera);
    }
}

#[test]
fn a_picture_leaves_when_all_of_it_has_come() {
    let mut scene = Scene::new();
    scene.left();
    let last = scene.film_without_end();
    assert_eq!(scene.left(), 0, "a part of it has left alone");
    scene.stage.deliver(scene.camera, &last);
    assert_eq!(scene.left(), 4);
}

#[test]
fn a_picture_whose_end_does_not_come_leaves_within_a_millisecond() {
    let mut scene = Scene::new();
    scene.left();
    let last = scene.film_without_end();
    assert_eq!(scene.left(), 0);
    scene.stage.bench.pass(Duration::from_millis(1));
    assert_eq!(scene.left(), 3);
    scene.stage.deliver(scene.camera, &last);
    assert_eq!(scene.left(), 1);
}

#[test]
fn sound_does_not_wait_for_the_end_of_a_picture() {
    let mut scene = Scene::new();
    scene.left();
    scene.film_without_end();
    assert_eq!(scene.left(), 0);
    scene.stage.speak(scene.camera, scene.sound);
    scene.stage.deliver_all(scene.camera);
    assert_eq!(scene.left(), 4);
}

#[test]
fn all_pictures_come_in_order_and_at_once() {
    let mut scene = Scene::new();
    let seen = scene.stage.clients[scene.viewer].heard.len();
    scene.film(500, 5);
    let seen = &scene.stage.clients[scene.viewer].heard[seen..];
    let numbers: Vec<u64> = seen.iter().map(|(_, packet)| *packet.seq_no).collect();
    assert!(numbers.len() >= 2_495, "{}", numbers.len());
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
    // The pacer parts one where the estimator of bandwidth probes.
    let pictures: Vec<_> = seen
        .chunk_by(|one, other| one.1.header.timestamp == other.1.header.timestamp)
        .collect();
    let parted = pictures.iter().filter(|picture| {
        let came = picture.iter().map(|(_, packet)| packet.timestamp);
        came.clone().max() > came.min()
    });
    let parted = parted.count();
    assert!(pictures.len() >= 499 && parted <= 5, "{parted}");
}

#[test]
fn what_is_sent_again_is_none_of_the_picture_that_is_waited_for() {
    let mut scene = Scene::new();
    scene.left();
    scene.film_now(2);
    assert_eq!(scene.left(), 2, "these are lost");
    scene.film_now(2);
    let packets = scene.take_left();
    let viewer = scene.viewer;
    for packet in packets {
        scene.stage.hand(viewer, &packet);
    }
    scene.stage.bench.pass(Duration::from_millis(100));
    scene.left();
    let last = scene.film_without_end();
    assert_eq!(scene.left(), 0);
    scene.stage.deliver_all(viewer);
    // Two again, and what there is of the picture.
    assert_eq!(scene.left(), 5);
    scene.stage.deliver(scene.camera, &last);
    assert_eq!(scene.left(), 1);
}
