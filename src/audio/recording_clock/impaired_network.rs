//! A simulated impaired network between a client and the server, for tests: when its chunks of 20 ms arrive.

/// Delays of up to 60 ms, single losses and bursts, and in every minute pauses of 3.5 and 8 s and a stall of 350 ms
/// after which everything arrives at once. Returns a chunk's delay in milliseconds, or `None` if it is lost; the first
/// six of each second are never lost unless there is a pause.
pub fn impaired_network(seed: u64) -> impl FnMut(u64) -> Option<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut burst = 0;
    move |chunk| {
        let delay = random.u64(..=60);
        burst = match burst {
            0 if random.u32(..250) == 0 => random.u32(2..=8),
            0 if random.u32(..200) == 0 => 1,
            _ => u32::saturating_sub(burst, 1),
        };
        let lost = burst > 0 && chunk % 50 >= 6;
        let minute = chunk % 3_000;
        let stall = match minute {
            2_310..2_327 => (2_327 - minute) * 20,
            _ => 0,
        };
        (!lost && !is_paused(chunk)).then_some(delay.max(stall))
    }
}

/// Whether the client pauses at this chunk.
pub fn is_paused(chunk: u64) -> bool {
    matches!(chunk % 3_000, 1_000..1_175 | 1_800..2_200)
}

/// The arrival times of chunks, in milliseconds: a stream preserves order.
pub fn arrivals(chunks: u64, fate: &mut impl FnMut(u64) -> Option<u64>) -> Vec<(u64, u64)> {
    let mut latest = 0;
    let come = (0..chunks).filter_map(|chunk| {
        latest = latest.max((chunk + 1) * 20 + fate(chunk)?);
        Some((latest, chunk))
    });
    come.collect()
}
