//! Well-known eviction policies, as short as they can be written, for files of one size: what ours is measured against.
//! None of them is part of warmfs.

use std::collections::{HashMap, HashSet, VecDeque};
use warmfs::types::FileId;

/// Plays the opens through a cache of `room` files and tells of each whether it was a hit.
pub type Rival = fn(opens: &[u32], room: usize) -> Vec<bool>;

/// All of them, by name.
pub const RIVALS: [(&str, Rival); 8] = [
    ("fifo", fifo),
    ("clock", clock),
    ("s3-fifo", s3_fifo),
    ("sieve", sieve),
    ("arc", arc),
    ("w-tinylfu", w_tiny_lfu),
    ("random", random),
    ("mru", mru),
];

/// A list by recency that finds its members: the newest is at the back.
struct Recency(lru::LruCache<u32, ()>);

impl Recency {
    fn new() -> Self {
        Self(lru::LruCache::unbounded())
    }
    fn has(&self, x: u32) -> bool {
        self.0.contains(&x)
    }
    fn push(&mut self, x: u32) {
        self.0.put(x, ());
    }
    fn pop_oldest(&mut self) -> Option<u32> {
        self.0.pop_lru().map(|(x, ())| x)
    }
    fn oldest(&self) -> Option<u32> {
        self.0.peek_lru().map(|(&x, ())| x)
    }
    fn remove(&mut self, x: u32) -> bool {
        self.0.pop(&x).is_some()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

fn fifo(opens: &[u32], room: usize) -> Vec<bool> {
    let mut cached = Recency::new();
    let mut play = |x| {
        if cached.has(x) {
            return true;
        }
        if cached.len() >= room {
            cached.pop_oldest();
        }
        cached.push(x);
        false
    };
    opens.iter().map(|&x| play(x)).collect()
}

fn clock(opens: &[u32], room: usize) -> Vec<bool> {
    let (mut slots, mut places, mut hand) = (Vec::<(u32, bool)>::new(), HashMap::<u32, usize>::new(), 0);
    let mut play = |x| {
        if let Some(&place) = places.get(&x) {
            slots[place].1 = true;
            return true;
        }
        if slots.len() < room {
            places.insert(x, slots.len());
            slots.push((x, false));
            return false;
        }
        while std::mem::take(&mut slots[hand].1) {
            hand = (hand + 1) % room;
        }
        places.remove(&slots[hand].0);
        slots[hand] = (x, false);
        places.insert(x, hand);
        hand = (hand + 1) % room;
        false
    };
    opens.iter().map(|&x| play(x)).collect()
}

fn s3_fifo(opens: &[u32], room: usize) -> Vec<bool> {
    let small_max = (room / 10).max(1);
    let main_max = room - small_max;
    let (mut small, mut main) = (VecDeque::new(), VecDeque::new());
    let (mut ghosts, mut freq) = (Recency::new(), HashMap::<u32, u8>::new());
    let evict_main = |main: &mut VecDeque<u32>, freq: &mut HashMap<u32, u8>| {
        while let Some(x) = main.pop_front() {
            match freq.get_mut(&x) {
                Some(f) if *f > 0 => {
                    *f -= 1;
                    main.push_back(x);
                }
                _ => {
                    freq.remove(&x);
                    return;
                }
            }
        }
    };
    let mut play = |x: u32| {
        if let Some(f) = freq.get_mut(&x) {
            *f = (*f + 1).min(3);
            return true;
        }
        while small.len() + main.len() >= room {
            if small.len() < small_max {
                evict_main(&mut main, &mut freq);
                continue;
            }
            while let Some(old) = small.pop_front() {
                if freq[&old] > 1 {
                    if main.len() >= main_max {
                        evict_main(&mut main, &mut freq);
                    }
                    main.push_back(old);
                    freq.insert(old, 0);
                } else {
                    freq.remove(&old);
                    ghosts.push(old);
                    if ghosts.len() > main_max {
                        ghosts.pop_oldest();
                    }
                    break;
                }
            }
        }
        if ghosts.remove(x) {
            main.push_back(x)
        } else {
            small.push_back(x)
        }
        freq.insert(x, 0);
        false
    };
    opens.iter().map(|&x| play(x)).collect()
}

/// The newest is at the back; the hand goes from the oldest to the newest.
fn sieve(opens: &[u32], room: usize) -> Vec<bool> {
    // Places only grow: what was evicted leaves a hole, and holes are cleared when they are many.
    let mut queue: Vec<Option<u32>> = Vec::new();
    let mut visited = HashMap::<u32, bool>::new();
    let mut hand = 0;
    let mut play = |x: u32| {
        if let Some(seen) = visited.get_mut(&x) {
            *seen = true;
            return true;
        }
        if visited.len() >= room {
            loop {
                if hand >= queue.len() {
                    hand = 0;
                }
                match queue[hand].map(|old| (old, visited[&old])) {
                    None => {}
                    Some((old, true)) => drop(visited.insert(old, false)),
                    Some((old, false)) => {
                        visited.remove(&old);
                        queue[hand] = None;
                        hand += 1;
                        break;
                    }
                }
                hand += 1;
            }
            if queue.len() > 8 * room {
                hand = queue[..hand.min(queue.len())].iter().flatten().count();
                queue.retain(Option::is_some);
            }
        }
        queue.push(Some(x));
        visited.insert(x, false);
        false
    };
    opens.iter().map(|&x| play(x)).collect()
}

fn arc(opens: &[u32], room: usize) -> Vec<bool> {
    let [mut t1, mut t2, mut b1, mut b2] = [(); 4].map(|()| Recency::new());
    let mut p = 0;
    let mut play = |x: u32| {
        if t1.remove(x) || t2.remove(x) {
            t2.push(x);
            return true;
        }
        let (in_b1, in_b2) = (b1.has(x), b2.has(x));
        if in_b1 {
            p = room.min(p + (b2.len() / b1.len().max(1)).max(1));
        } else if in_b2 {
            p = p.saturating_sub((b1.len() / b2.len().max(1)).max(1));
        }
        let mut replace = |t1: &mut Recency, b1: &mut Recency, b2: &mut Recency| {
            if t1.len() > 0 && (t1.len() > p || (in_b2 && t1.len() == p)) {
                t1.pop_oldest().into_iter().for_each(|old| b1.push(old));
            } else {
                t2.pop_oldest().into_iter().for_each(|old| b2.push(old));
            }
        };
        if in_b1 || in_b2 {
            replace(&mut t1, &mut b1, &mut b2);
            b1.remove(x);
            b2.remove(x);
            t2.push(x);
            return false;
        }
        if t1.len() + b1.len() == room {
            if t1.len() < room {
                b1.pop_oldest();
                replace(&mut t1, &mut b1, &mut b2);
            } else {
                t1.pop_oldest();
            }
        } else if t1.len() + b1.len() + t2.len() + b2.len() >= room {
            if t1.len() + b1.len() + t2.len() + b2.len() >= 2 * room {
                b2.pop_oldest();
            }
            let mut replace = |t1: &mut Recency, b1: &mut Recency, b2: &mut Recency| {
                if t1.len() > 0 && t1.len() > p {
                    t1.pop_oldest().into_iter().for_each(|old| b1.push(old));
                } else {
                    t2.pop_oldest().into_iter().for_each(|old| b2.push(old));
                }
            };
            replace(&mut t1, &mut b1, &mut b2);
        }
        t1.push(x);
        false
    };
    opens.iter().map(|&x| play(x)).collect()
}

/// With exact counts, which is more than it has in practice.
fn w_tiny_lfu(opens: &[u32], room: usize) -> Vec<bool> {
    let window_max = (room / 100).max(1);
    let main_max = room - window_max;
    let protected_max = main_max * 8 / 10;
    let [mut window, mut probation, mut protected] = [(); 3].map(|()| Recency::new());
    let (mut freq, mut counted) = (HashMap::<u32, u8>::new(), 0);
    let mut play = |x: u32| {
        let f = freq.entry(x).or_default();
        *f = (*f + 1).min(15);
        counted += 1;
        if counted >= 10 * room {
            counted /= 2;
            freq.values_mut().for_each(|f| *f /= 2);
            freq.retain(|_, f| *f > 0);
        }
        for part in [&mut window, &mut protected] {
            if part.remove(x) {
                part.push(x);
                return true;
            }
        }
        if probation.remove(x) {
            protected.push(x);
            if protected.len() > protected_max {
                protected.pop_oldest().into_iter().for_each(|old| probation.push(old));
            }
            return true;
        }
        window.push(x);
        if window.len() > window_max
            && let Some(candidate) = window.pop_oldest()
        {
            let of = |x: u32| freq.get(&x).copied().unwrap_or(0);
            if probation.len() + protected.len() < main_max {
                probation.push(candidate);
            } else if let Some(victim) = probation.oldest().or_else(|| protected.oldest())
                && of(candidate) > of(victim)
            {
                probation.remove(victim);
                protected.remove(victim);
                probation.push(candidate);
            }
        }
        false
    };
    opens.iter().map(|&x| play(x)).collect()
}

fn random(opens: &[u32], room: usize) -> Vec<bool> {
    let (mut slots, mut cached) = (Vec::new(), HashSet::new());
    let mut play = |(at, x): (usize, u32)| {
        if !cached.insert(x) {
            return true;
        }
        if slots.len() < room {
            slots.push(x);
        } else {
            let draw = FileId { high: 77, low: at as u64 }.fingerprint() as usize % room;
            cached.remove(&std::mem::replace(&mut slots[draw], x));
        }
        false
    };
    opens.iter().copied().enumerate().map(|(at, x)| play((at, x))).collect()
}

fn mru(opens: &[u32], room: usize) -> Vec<bool> {
    let mut cached = HashSet::new();
    let mut newest = None;
    let mut older = Vec::new();
    let mut play = |x: u32| {
        let hit = cached.contains(&x);
        if !hit {
            if cached.len() >= room {
                let mut victim = newest;
                while victim.is_none_or(|v| !cached.contains(&v)) {
                    victim = older.pop();
                }
                cached.remove(&victim.unwrap());
            }
            cached.insert(x);
        }
        older.extend(newest.replace(x));
        hit
    };
    opens.iter().map(|&x| play(x)).collect()
}
