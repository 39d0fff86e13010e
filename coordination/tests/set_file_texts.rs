//! Set files: what is accepted, and the message for each kind of mistake.

use proptest::prelude::*;
use rustbtl_coordination::{SetFileError, SetPolicy, fingerprint, parse_set_file};
use rustbtl_fragments::ids::SetId;

fn sets(text: &str, world_size: u32) -> Vec<u32> {
    parse_set_file(text, world_size).unwrap().iter().map(|set| set.0).collect()
}

fn message(text: &str, world_size: u32) -> String {
    parse_set_file(text, world_size).unwrap_err().to_string()
}

#[test]
fn one_line_is_one_set_named_by_its_lowest_rank() {
    assert_eq!(sets("0-3,8\n4-7 9\n", 10), [0, 0, 0, 0, 4, 4, 4, 4, 0, 4]);
    assert_eq!(sets("3 , 1\n\n# nothing\n  0,2 # the rest\r\n", 4), [0, 1, 0, 1]);
    assert_eq!(sets("0", 1), [0]);
    assert_eq!(sets("2-2\t1,,0", 3), [0, 0, 0]);
}

#[test]
fn every_mistake_is_named_with_its_line_and_what_to_do() {
    let table = [
        (
            "# only this\n",
            4,
            "the set file names no rank; write one correlated set a line, for example \"0-3\"",
        ),
        ("0-3\n4 x7 5", 8, "line 2 of the set file: \"x7\" is neither a rank nor a range like 4-7"),
        ("0-\n", 8, "line 1 of the set file: \"0-\" is neither a rank nor a range like 4-7"),
        ("-1\n", 8, "line 1 of the set file: \"-1\" is neither a rank nor a range like 4-7"),
        ("1-2-3\n", 8, "line 1 of the set file: \"1-2-3\" is neither a rank nor a range like 4-7"),
        ("+1\n", 8, "line 1 of the set file: \"+1\" is neither a rank nor a range like 4-7"),
        ("7-4\n", 8, "line 1 of the set file: the range 7-4 runs backwards; write 4-7"),
        (
            "0-8\n",
            8,
            "line 1 of the set file: there is no rank 8, the job has 8 (ranks 0 to 7); remove it \
             or start more processes",
        ),
        (
            "99999999999999999999999\n",
            8,
            "line 1 of the set file: there is no rank 18446744073709551615, the job has 8 (ranks \
             0 to 7); remove it or start more processes",
        ),
        (
            "0-3\n\n2,4-7\n",
            8,
            "rank 2 is in line 1 of the set file and again in line 3; remove it from one of them",
        ),
        ("0 1 0", 2, "line 1 of the set file names rank 0 twice; remove one of the two"),
        ("0-2\n4-7", 8, "rank 3 is in no line of the set file; add it to one"),
        (
            "0\n9-11",
            20,
            "16 ranks are in no line of the set file: 1-8, 12-19; add each to one line",
        ),
        (
            "0 2 4 6 8 10 12 14 16 18 20",
            30,
            "19 ranks are in no line of the set file: 1, 3, 5, 7, 9, 11, 13, 15 and 11 more; add \
             each to one line",
        ),
    ];
    for (text, world_size, expected) in table {
        assert_eq!(message(text, world_size), expected, "{text:?}");
    }
}

#[test]
fn invariant_3_absurd_input_is_refused_before_it_costs_anything() {
    let out_of_range = matches!(
        parse_set_file("0-4294967295", 4),
        Err(SetFileError::OutOfRange { rank: 4_294_967_295, .. })
    );
    assert!(out_of_range);
    assert!(matches!(parse_set_file("0", u32::MAX), Err(SetFileError::WorldTooLarge { .. })));
    let long = " ".repeat((64 << 20) + 1);
    assert!(matches!(parse_set_file(&long, 1), Err(SetFileError::TooLong { .. })));
    let junk = "y".repeat(1 << 20);
    assert!(message(&junk, 1).len() < 200);
    // Many ranges that each cover the world: the second one ends it.
    let many = "0-16777215\n".repeat(1000);
    assert!(matches!(
        parse_set_file(&many, 1 << 24),
        Err(SetFileError::Repeated { first_line: 1, line: 2, .. })
    ));
}

/// A way to write a partition down: sets in some order, ranges or single ranks, any separators.
fn written(partition: &[u32], style: &[u8]) -> String {
    let mut style = style.iter().copied().cycle();
    let mut next = || style.next().unwrap_or(0);
    let mut names: Vec<u32> = partition.to_vec();
    names.sort_by_cached_key(|name| name.wrapping_mul(u32::from(next()) | 1));
    names.dedup();
    let mut seen = Vec::new();
    let mut text = String::new();
    for name in names {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let mut rank = 0;
        while rank < partition.len() {
            let mut last = rank;
            while last + 1 < partition.len() && partition[last + 1] == name {
                last += 1;
            }
            if partition[rank] != name {
                rank += 1;
                continue;
            }
            if next() % 2 == 0 {
                text += &format!("{rank}-{last}");
                rank = last + 1;
            } else {
                text += &rank.to_string();
                rank += 1;
            }
            text += [",", " ", "\t", " , "][next() as usize % 4];
        }
        text += ["\n", " # a set\n", "\r\n", "\n\n#\n"][next() as usize % 4];
    }
    text
}

proptest! {
    #[test]
    fn any_text_gives_an_answer(text in "\\PC*", world_size in 0..100_u32) {
        let _ = parse_set_file(&text, world_size);
    }

    #[test]
    fn text_of_the_right_letters_gives_an_answer_that_is_a_partition(
        text in "[0-9,\\- #\n]{0,60}", world_size in 0..20_u32,
    ) {
        match parse_set_file(&text, world_size) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(sets) => {
                prop_assert_eq!(sets.len(), world_size as usize);
                for (rank, set) in sets.iter().enumerate() {
                    prop_assert!(set.0 as usize <= rank, "invariant 2");
                    prop_assert_eq!(sets[set.0 as usize], *set, "invariant 2");
                }
            }
        }
    }

    #[test]
    fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_set_file(&String::from_utf8_lossy(&bytes), 7);
        let _ = SetPolicy::parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn however_a_partition_is_written_it_reads_the_same(
        partition in prop::collection::vec(0..6_u32, 1..40),
        styles in prop::array::uniform2(prop::collection::vec(any::<u8>(), 1..50)),
    ) {
        let world_size = partition.len() as u32;
        let expected: Vec<SetId> = partition
            .iter()
            .map(|name| SetId(partition.iter().position(|other| other == name).unwrap() as u32))
            .collect();
        let policy = SetPolicy::File("x".to_owned());
        let prints = styles.map(|style| {
            let text = written(&partition, &style);
            let sets = parse_set_file(&text, world_size).unwrap();
            assert_eq!(sets, expected, "{text:?}");
            fingerprint(&policy, world_size, Some(&sets))
        });
        prop_assert_eq!(prints[0], prints[1]);
    }
}
