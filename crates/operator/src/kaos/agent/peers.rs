//! Pure: may an agent start that waits for other agents?
//!
//! A peer has to be ready first, unless the two wait for each other: then nobody would ever start. So an agent starts
//! when everybody whom it waits for, directly or through others, waits for it as well, and nobody among them is held
//! back by anything but peers. Those who wait for such a circle from outside go on waiting until it is ready.
//!
//! Each agent is woken by its direct peers only. That is enough: what makes a circle free changes the state of a
//! member, which starts, which changes its state again, and so on round the circle.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use gantry_kit::ObjectKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Can be talked to.
    Ready,
    /// Has pods, which are not ready.
    Started,
    /// Has no pods, and waits for nothing but peers.
    Waits,
    /// Has no pods, and something else than peers is missing. Or it does not exist.
    Held,
}

/// An agent as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub state: State,
    /// Whom it waits for.
    pub waits_for: Vec<ObjectKey>,
}

/// Whether `me`, whom nothing but the peers `waits_for` holds back, may start. Linear in the agents that can be
/// reached; ends at the first one that is held back.
pub fn may_start(me: &ObjectKey, waits_for: &[ObjectKey], look: impl Fn(&ObjectKey) -> Peer) -> bool {
    let mut seen: HashMap<ObjectKey, Rc<Peer>> = HashMap::new();
    let own = Peer {
        state: State::Waits,
        waits_for: waits_for.to_vec(),
    };
    seen.insert(me.clone(), Rc::new(own));
    let mut known = |key: &ObjectKey| match seen.get(key) {
        Some(peer) => peer.clone(),
        None => seen.entry(key.clone()).or_insert(Rc::new(look(key))).clone(),
    };
    let Some(needed) = reach(me, &mut known, |state| state == State::Waits) else {
        return false;
    };
    if needed.len() == 1 {
        return true;
    }
    // Who of all these leads back to me, by whatever way?
    let all = reach(me, &mut known, |_| true).unwrap_or_default();
    let mut waited_for_by: HashMap<&ObjectKey, Vec<&ObjectKey>> = HashMap::new();
    for key in &all {
        for target in seen.get(key).into_iter().flat_map(|peer| &peer.waits_for) {
            waited_for_by.entry(target).or_default().push(key);
        }
    }
    let mut circle = HashSet::from([me]);
    let mut next = vec![me];
    while let Some(key) = next.pop() {
        for waiting in waited_for_by.get(key).into_iter().flatten() {
            if circle.insert(waiting) {
                next.push(waiting);
            }
        }
    }
    needed.iter().all(|key| circle.contains(key))
}

/// Everybody not ready who is waited for, from `me` on through those whose state `goes_on`. `None` when one of them is
/// held back and it matters: when only agents that wait are gone through.
fn reach(
    me: &ObjectKey,
    known: &mut impl FnMut(&ObjectKey) -> Rc<Peer>,
    goes_on: impl Fn(State) -> bool,
) -> Option<HashSet<ObjectKey>> {
    let held_matters = !goes_on(State::Held);
    let mut found = HashSet::from([me.clone()]);
    let mut next = vec![me.clone()];
    while let Some(key) = next.pop() {
        for target in &known(&key).waits_for {
            let state = known(target).state;
            if state == State::Held && held_matters {
                return None;
            }
            if state != State::Ready && found.insert(target.clone()) && goes_on(state) {
                next.push(target.clone());
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// Agents by number: their state, and whom they wait for.
    type Graph = Vec<(State, Vec<usize>)>;

    fn key(number: usize) -> ObjectKey {
        ObjectKey::new("ns", number.to_string())
    }

    fn starts(graph: &Graph, me: usize) -> bool {
        let keys = |list: &[usize]| list.iter().copied().map(key).collect::<Vec<_>>();
        may_start(&key(me), &keys(&graph[me].1), |asked| {
            let number: usize = asked.name.parse().expect("a number");
            let (state, waits_for) = &graph[number];
            Peer {
                state: *state,
                waits_for: keys(waits_for),
            }
        })
    }

    use State::{Held, Ready, Started, Waits};

    #[rstest]
    #[case::alone(vec![(Waits, vec![])], true)]
    #[case::itself(vec![(Waits, vec![0])], true)]
    #[case::ready_peer(vec![(Waits, vec![1]), (Ready, vec![])], true)]
    #[case::peer_comes_first(vec![(Waits, vec![1]), (Waits, vec![])], false)]
    #[case::peer_on_its_way(vec![(Waits, vec![1]), (Started, vec![])], false)]
    #[case::peer_is_held(vec![(Waits, vec![1]), (Held, vec![0])], false)]
    #[case::two(vec![(Waits, vec![1]), (Waits, vec![0])], true)]
    #[case::three(vec![(Waits, vec![1]), (Waits, vec![2]), (Waits, vec![0])], true)]
    #[case::one_of_three_runs(vec![(Waits, vec![1]), (Started, vec![2]), (Waits, vec![0])], true)]
    #[case::one_of_three_is_held(vec![(Waits, vec![1]), (Waits, vec![2]), (Held, vec![0])], false)]
    #[case::circle_waits_for_an_outsider(vec![(Waits, vec![1]), (Waits, vec![0, 2]), (Waits, vec![])], false)]
    #[case::outside_of_a_circle(vec![(Waits, vec![1]), (Waits, vec![2]), (Waits, vec![1])], false)]
    fn examples(#[case] graph: Graph, #[case] expected: bool) {
        assert_eq!(starts(&graph, 0), expected);
    }

    #[test]
    fn a_ring_of_thousands_is_no_matter() {
        let size = 5_000;
        let ring: Graph = (0..size).map(|n| (Waits, vec![(n + 1) % size])).collect();
        assert!(starts(&ring, 0));
        let full: Graph = (0..300).map(|_| (Waits, (0..300).collect())).collect();
        assert!(starts(&full, 7));
    }

    fn graphs() -> impl Strategy<Value = Graph> {
        (1_usize..9).prop_flat_map(|size| {
            let state = prop_oneof![
                6 => Just(Waits), 1 => Just(Held), 1 => Just(Ready), 1 => Just(Started),
            ];
            let peers = proptest::collection::vec(0..size, 0..4);
            proptest::collection::vec((state, peers), size)
        })
    }

    /// By whom anybody can be reached, through agents that are not ready and that `through` lets pass.
    fn reachable(graph: &Graph, from: usize, through: impl Fn(State) -> bool) -> Vec<bool> {
        let mut found = vec![false; graph.len()];
        for _ in 0..graph.len() {
            for (number, (state, waits_for)) in graph.iter().enumerate() {
                if number == from || (found[number] && *state != Ready && through(*state)) {
                    for target in waits_for {
                        found[*target] = found[*target] || graph[*target].0 != Ready;
                    }
                }
            }
        }
        found
    }

    proptest! {
        /// The rule as the module states it, by brute force.
        #[test]
        fn an_agent_starts_when_those_it_waits_for_wait_for_it(graph in graphs()) {
            for me in (0..graph.len()).filter(|me| graph[*me].0 == Waits) {
                let needed = reachable(&graph, me, |state| state == Waits);
                let expected = (0..graph.len()).filter(|other| needed[*other] && *other != me).all(|other| {
                    graph[other].0 != Held && reachable(&graph, other, |_| true)[me]
                });
                prop_assert_eq!(starts(&graph, me), expected, "agent {}", me);
            }
        }

        /// Nobody waits for ever who could start: in the end only those have no pods who need somebody that is held.
        #[test]
        fn nobody_is_left_behind(mut graph in graphs()) {
            let before = graph.clone();
            // A round to start, a round to become ready.
            for _ in 0..=2 * graph.len() {
                let waiting = (0..graph.len()).filter(|me| graph[*me].0 == Waits);
                let started: Vec<usize> = waiting.filter(|me| starts(&graph, *me)).collect();
                for agent in &mut graph {
                    agent.0 = if agent.0 == Started { Ready } else { agent.0 };
                }
                for me in started {
                    graph[me].0 = Started;
                }
            }
            for me in (0..graph.len()).filter(|me| before[*me].0 == Waits) {
                let needed = reachable(&before, me, |state| state == Waits);
                let held = (0..before.len()).any(|other| needed[other] && before[other].0 == Held);
                prop_assert_eq!(graph[me].0 == Waits, held, "agent {}", me);
            }
        }
    }
}
