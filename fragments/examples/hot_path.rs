//! The fast path, many times, for tools that count instructions: `cargo build --profile bench -p
//! rustbtl-fragments --example hot_path`, then `valgrind --tool=callgrind
//! target/release/examples/hot_path [send|expected|unexpected] [N]`.

#[path = "../benches/null/mod.rs"]
mod null;

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "expected".to_string());
    let count: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(10_000_000);
    let mut pair = null::Pair::new();
    for _ in 0..count {
        match what.as_str() {
            "send" => pair.send(0, 5, 8),
            "unexpected" => {
                pair.send(0, 5, 8);
                pair.deliver(1);
                pair.receive(1, 5, 8);
            }
            _ => {
                pair.receive(1, 5, 8);
                pair.send(0, 5, 8);
                pair.deliver(1);
            }
        }
    }
    println!("{count} times {what}: {} completions", pair.hosts[1].completed);
}
