//! Protected jobs over two Soft-RoCE adapters: checkpoints, rollbacks, restarts without adapters
//! and with them again, links that fail or lose packets, programs that use adapters themselves.
//! What each case does is a script for the machine; its functions are in tests/rdma/protected.sh,
//! and each of their waits has an end.

use super::{in_machine, parameters, said};
use crate::error::{Result, fail};
use crate::test::mpi;
use crate::test::summary::Tier;
use crate::{build, paths};

/// One job, or several one after the other.
struct Case {
    name: &'static str,
    /// A source in tests/workloads, and its arguments. GATE: the file that says how far it may go.
    program: (&'static str, &'static str),
    /// Seconds between checkpoints; 0: those that are asked for, and the first one.
    interval: u32,
    /// Who uses the adapters.
    user: User,
    /// In the machine. `$answer`: what the program says over stock Open MPI.
    script: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    /// Our transport.
    Transport,
    /// The program, past MPI: its verbs are shadowed, and all roll back together.
    Program,
    /// Both.
    Both,
}

const RING: (&str, &str) = ("hash_ring.c", "300 20000 /tmp/gate");
/// Each message to the right neighbour is one that its receiver reads from where it lies.
const LONG_RING: (&str, &str) = ("hash_ring.c", "300 400000 /tmp/gate long");
/// Its third argument: the adapters' GIDs of RoCE v2.
const VERBS_RING: (&str, &str) = ("verbs_ring.c", "300 rxe1,rxe2 1 /tmp/gate");

const CASES: [Case; 14] = [
    Case {
        name: "checkpoints, kill -9 of each rank and live rollbacks",
        program: RING,
        interval: 1,
        user: User::Transport,
        script: "
            kill_each $program; finish \"$answer\"
            [ $(count global_rollback) = 0 ] || fail 'all ranks were rolled back'",
    },
    Case {
        name: "the same while ranks sleep between their calls",
        program: ("by_pid.c", "200 5000 sleeps /tmp/gate"),
        interval: 1,
        user: User::Transport,
        script: "
            start $program
            await checkpoint_completed 4
            kill_rank 1; await replay_completed 1
            before=$(count checkpoint_completed)
            await checkpoint_completed $((before + 2))
            finish \"$answer\"",
    },
    Case {
        name: "a global rollback",
        program: ("by_pid.c", "200 200 pid /tmp/gate"),
        interval: 2,
        user: User::Transport,
        script: "
            start $program
            await checkpoint_completed 2
            kill_rank 1; await global_rollback 1; await replay_completed 2
            must_send
            finish \"$answer\"",
    },
    Case {
        name: "images from verbs restarted over TCP, and theirs over verbs",
        program: RING,
        interval: 0,
        user: User::Transport,
        script: "
            over_tcp_and_back $program; finish \"$answer\"",
    },
    Case {
        name: "a link fails, and TCP takes over",
        program: RING,
        interval: 0,
        user: User::Transport,
        script: "
            start $program
            await checkpoint_completed 1
            must_send
            link_down
            finish \"$answer\"
            must_say_once 'port is down; messages go over TCP until it is back'",
    },
    Case {
        name: "a link fails, a rank is rolled back without it, the link returns",
        program: RING,
        interval: 0,
        user: User::Transport,
        script: "
            start $program
            await checkpoint_completed 1
            must_send
            link_down; sleep 1; link_up
            must_send
            link_down
            kill_rank 1; await replay_completed 1
            link_up
            finish \"$answer\"",
    },
    Case {
        name: "long messages are read: checkpoints, kill -9 of each rank and live rollbacks",
        program: LONG_RING,
        interval: 1,
        user: User::Transport,
        script: "
            kill_each $program; finish \"$answer\"
            [ $(count global_rollback) = 0 ] || fail 'all ranks were rolled back'
            must_have_fetched 200",
    },
    Case {
        name: "long messages are read: packets are lost, then a link, and TCP takes over",
        program: LONG_RING,
        interval: 1,
        user: User::Transport,
        script: "
            start $program
            await checkpoint_completed 2
            packets_lost 1%
            must_send
            kill_rank 1; await replay_completed 1
            must_send
            link_down; sleep 1
            kill_rank 0; await replay_completed 2
            finish \"$answer\"
            must_have_lost 5",
    },
    Case {
        name: "long messages are read: images restarted over TCP, and theirs over verbs",
        program: LONG_RING,
        interval: 0,
        user: User::Transport,
        script: "
            over_tcp_and_back $program; finish \"$answer\"
            must_have_fetched 100",
    },
    Case {
        name: "long messages are read over both adapters, a rank is rolled back",
        program: LONG_RING,
        interval: 1,
        user: User::Transport,
        script: "
            export OMPI_MCA_vprotocol_correlated_verbose=20 rails=2
            start $program
            await checkpoint_completed 3
            kill_rank 1; await replay_completed 1
            before=$(count checkpoint_completed)
            await checkpoint_completed $((before + 2))
            finish \"$answer\"
            must_say 1 'rxe1 port 1, RoCE.*; long messages also by rxe2 port 1'
            must_say 1 'rxe2 port 1, RoCE.*; long messages also by rxe1 port 1'
            must_have_fetched 100",
    },
    Case {
        name: "packets are lost, a rank is rolled back meanwhile",
        program: RING,
        interval: 1,
        user: User::Transport,
        script: "
            start $program
            await checkpoint_completed 1
            packets_lost 3%
            must_send
            kill_rank 1; await replay_completed 1
            before=$(count checkpoint_completed)
            await checkpoint_completed $((before + 2))
            must_send
            finish \"$answer\"
            must_have_lost 5",
    },
    Case {
        name: "a program that uses verbs itself: two kills, all roll back",
        program: VERBS_RING,
        interval: 1,
        user: User::Program,
        script: "
            start $program
            await checkpoint_completed 3
            kill_rank 1; await global_rollback 1; await replay_completed 2
            before=$(count checkpoint_completed)
            await checkpoint_completed $((before + 2))
            kill_rank 0; await global_rollback 2; await replay_completed 4
            must_send
            finish \"$answer\"
            must_say 4 'verbs are made again'",
    },
    Case {
        name: "a program that uses verbs itself: restarts of the whole job",
        program: VERBS_RING,
        interval: 0,
        user: User::Program,
        script: "
            start $program
            await checkpoint_completed 1
            must_send
            checkpoint_and_exit
            restart
            await ready 2
            echo 150 > $gate
            must_send
            checkpoint_and_exit
            restart
            must_send
            finish \"$answer\"",
    },
    Case {
        name: "a program that uses verbs itself, and so does the transport",
        program: VERBS_RING,
        interval: 1,
        user: User::Both,
        script: "
            start $program
            await checkpoint_completed 3
            kill_rank 1; await global_rollback 1; await replay_completed 2
            must_send
            finish \"$answer\"
            must_say 2 'verbs are made again'",
    },
];

/// All cases, each in a machine of its own.
pub fn run(tier: &mut Tier) {
    for case in &CASES {
        tier.check(&format!("Soft-RoCE: {}", case.name), || check(case));
    }
}

fn check(case: &Case) -> Result<()> {
    let script = job(case)?;
    let said = said(in_machine(&script)?)?;
    if said.lines().last() != Some("passed") {
        fail!("{said}\nthe script did not come to its end");
    }
    Ok(())
}

fn job(case: &Case) -> Result<String> {
    let (source, arguments) = case.program;
    let source = paths::root().join("tests/workloads").join(source);
    let program = match case.user {
        User::Transport => mpi::compile(&source)?,
        _ => mpi::compile_with(&source, &["-Wl,--no-as-needed", "-libverbs"])?,
    };
    let functions = paths::root().join("tests/rdma/protected.sh");
    let rustbtl = paths::mca().join(build::PROGRAM);
    let interval = case.interval.to_string();
    let is = |user: bool| if user { "1" } else { "0" };
    let own = [
        ("verbs", is(case.user != User::Program)),
        ("shadow_verbs", is(case.user != User::Transport)),
        ("verbose", if case.user == User::Transport { "0" } else { "20" }),
        ("sets", "none"),
        ("checkpoint_dir", "/tmp/checkpoints"),
        ("report", "/tmp/report"),
        ("checkpoint_interval", interval.as_str()),
        // Each set can be rolled back alone at any time.
        ("overhead_max", "0"),
    ];
    Ok(format!(
        "rustbtl={}\nprogram='{} {arguments}'\n. {}\necho 2000000000 > $gate\n\
         answer=$(stock $program)\n{}{}\necho passed\n",
        rustbtl.display(),
        program.display(),
        functions.display(),
        parameters(&own),
        case.script,
    ))
}
