//! The state that a coordinator after a failover reads: a folder on mpirun's node. What is written
//! here survives the end of the process, which is all that is needed (docs/adr/0011): nothing is
//! synced.
//!
//! ```text
//! SESSION/rustbtl-JOB.state/     mode 0700
//!   state.json                   written as a whole under a temporary name, then renamed
//!   determinants-SET             batches, each after its length and round
//!   round                        the last round of which all batches are here
//! ```
//! What one write to several files has is there as a whole or not at all: its batches have the
//! number of a round, and count when `round` has it. Round 0 always counts.

use crate::coordinator::job::tables::persisted::PersistedState;
use rustbtl_coordination::determinants::DeterminantBatch;
use rustbtl_fragments::ids::SetId;
use rustbtl_fragments::little_endian::{LittleEndian, take_bytes};
use rustbtl_process::private_files::Folder;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const STATE: &str = "state.json";
const DETERMINANTS: &str = "determinants-";
const ROUND: &str = "round";
/// Longest state that is read: some 100 bytes for each rank and each image.
const STATE_BYTES_MAX: u64 = 1 << 30;
/// Most determinants of a set that are read: the coordinator before this one had them in memory.
const DETERMINANTS_BYTES_MAX: u64 = 16 << 30;

/// The folder, written by this process.
pub struct FailoverStore {
    folder: Folder,
    files: BTreeMap<SetId, File>,
    /// The last one that counts, and where it is written.
    round: u64,
    round_file: Option<File>,
}

/// The state of the coordinator before this one.
pub struct LoadedState {
    /// Of the job.
    pub state: PersistedState,
    /// Determinants of the sets that record.
    pub determinants: Vec<Vec<DeterminantBatch>>,
}

/// Its name in mpirun's session directory.
pub fn folder(session: &Path, job: &str) -> PathBuf {
    session.join(format!("rustbtl-{job}.state"))
}

impl FailoverStore {
    /// An empty one.
    pub fn create(folder: &Path) -> io::Result<Self> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self::of(Folder::create(folder)?, 0))
    }

    fn of(folder: Folder, round: u64) -> Self {
        Self { folder, files: BTreeMap::new(), round, round_file: None }
    }

    /// Opens that of the coordinator before this one, and reads it.
    pub fn open(folder: &Path) -> Result<(Self, LoadedState), String> {
        let shown = folder.display();
        let folder = Folder::open(folder).map_err(|error| error.to_string())?;
        let text = folder.read(STATE, STATE_BYTES_MAX);
        let text = text.map_err(|error| format!("{error} (the persisted state)"))?;
        let state: PersistedState = serde_json::from_slice(&text)
            .map_err(|error| format!("{shown}/{STATE} makes no sense: {error}"))?;
        let round = match folder.read(ROUND, size_of::<u64>() as u64) {
            Err(error) if error.is_missing() => 0,
            Err(error) => return Err(error.to_string()),
            Ok(bytes) => u64::take_from(&mut &bytes[..]).unwrap_or(0),
        };
        let mut determinants = Vec::new();
        for name in folder.names().map_err(|error| error.to_string())? {
            let set = name.to_str().and_then(|name| name.strip_prefix(DETERMINANTS));
            let Some(set) = set.and_then(|set| set.parse().ok()).map(SetId) else { continue };
            let bytes = folder.read(&name, DETERMINANTS_BYTES_MAX);
            let bytes = bytes.map_err(|error| error.to_string())?;
            let shown = folder.path().join(&name);
            let (batches, rest) = batches(&bytes, set, round)
                .map_err(|reason| format!("{} makes no sense: {reason}", shown.display()))?;
            if rest > 0 {
                let file = folder.file_to_append(&name).map_err(|error| error.to_string())?;
                let cut = file.set_len((bytes.len() - rest) as u64);
                cut.map_err(|error| format!("{}: {error}", shown.display()))?;
            }
            determinants.push(batches);
        }
        Ok((Self::of(folder, round), LoadedState { state, determinants }))
    }

    /// Replaces the state.
    pub fn write_state(&mut self, state: &PersistedState) -> io::Result<()> {
        self.replace(STATE, &serde_json::to_vec(state).map_err(io::Error::other)?)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let draft = format!("{name}.tmp");
        self.folder.create_file_anew(&draft)?.write_all(bytes)?;
        Ok(self.folder.rename(&draft, name)?)
    }

    /// Appends to the determinants of these sets: to all or to none.
    pub fn append_determinants(&mut self, batches: &[(SetId, Vec<u8>)]) -> io::Result<()> {
        let round = if batches.len() > 1 { self.round + 1 } else { 0 };
        for (set, batch) in batches {
            if !self.files.contains_key(set) {
                let name = format!("{DETERMINANTS}{}", set.0);
                self.files.insert(*set, self.folder.file_or_new_to_append(name)?);
            }
            let Some(file) = self.files.get_mut(set) else { continue };
            file.write_all(&framed(batch, round)?)?;
        }
        if round > 0 { self.end_round(round) } else { Ok(()) }
    }

    /// Everything of this round is here.
    fn end_round(&mut self, round: u64) -> io::Result<()> {
        let file = match self.round_file.take() {
            Some(file) => file,
            None => self.folder.file_or_new(ROUND)?,
        };
        let mut bytes = Vec::new();
        round.append(&mut bytes);
        self.round_file.insert(file).write_all_at(&bytes, 0)?;
        self.round = round;
        Ok(())
    }

    /// Replaces the determinants of this set.
    pub fn replace_determinants(&mut self, set: SetId, batch: &[u8]) -> io::Result<()> {
        self.files.remove(&set);
        self.replace(&format!("{DETERMINANTS}{}", set.0), &framed(batch, 0)?)
    }

    /// Removes it: there is no failover any more, or it could not use it.
    pub fn remove(self) {
        let _ = fs::remove_dir_all(self.folder.path());
    }
}

/// Length and round of a batch.
const HEAD_BYTES: usize = size_of::<u32>() + size_of::<u64>();

/// In one piece: the length is never there alone.
fn framed(batch: &[u8], round: u64) -> io::Result<Vec<u8>> {
    let length = u32::try_from(batch.len()).map_err(io::Error::other)?;
    let mut framed = Vec::with_capacity(HEAD_BYTES + batch.len());
    length.append(&mut framed);
    round.append(&mut framed);
    framed.extend_from_slice(batch);
    Ok(framed)
}

/// Those that count, and how many bytes follow that do not. The last one may be cut off, or of a
/// round that has not ended: then it was not reported stable to anybody.
fn batches(
    mut bytes: &[u8],
    set: SetId,
    round: u64,
) -> Result<(Vec<DeterminantBatch>, usize), String> {
    let mut all: Vec<DeterminantBatch> = Vec::new();
    let mut rest = bytes.len();
    while let Some(length) = u32::take_from(&mut bytes) {
        let counts = u64::take_from(&mut bytes).is_some_and(|of| of <= round);
        let batch = take_bytes(&mut bytes, length as usize).filter(|_| counts);
        let Some(batch) = batch else { break };
        let batch = DeterminantBatch::decode(batch).map_err(|error| error.to_string())?;
        let follows = all
            .last()
            .is_none_or(|last| batch.from == last.upto && batch.incarnation == last.incarnation);
        if batch.set != set || !follows || (all.is_empty() && batch.from != 0) {
            return Err(format!("places {} to {} are out of order", batch.from, batch.upto));
        }
        all.push(batch);
        rest = bytes.len();
    }
    Ok((all, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_coordination::determinants::{
        CallKind, Determinant, DeterminantRecord, NondetCall, Numbered, Outcome,
    };
    use rustbtl_fragments::ids::{Incarnation, PeerId};

    const SET: SetId = SetId(2);

    fn batch(from: u64, upto: u64) -> DeterminantBatch {
        let record = |at| {
            let call = NondetCall::requests(CallKind::WaitAny, 9);
            let determinant = Determinant::Outcome { call, outcome: Outcome::Done };
            DeterminantRecord {
                at,
                rank: PeerId(3),
                numbered: Numbered { number: at, determinant },
            }
        };
        let records = (from..upto).map(record).collect();
        DeterminantBatch { set: SET, incarnation: Incarnation(1), from, upto, inherits: 0, records }
    }

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn new(name: &str) -> (FailoverStore, Folder) {
        let path = std::env::temp_dir().join(format!("rbt-{name}-{}", std::process::id()));
        (FailoverStore::create(&path).unwrap(), Folder(path))
    }

    fn append(failover_store: &mut FailoverStore, from: u64, upto: u64) {
        failover_store.append_determinants(&[(SET, batch(from, upto).encode())]).unwrap();
    }

    #[test]
    fn what_one_write_has_of_several_sets_is_there_as_a_whole_or_not_at_all() {
        const OTHER: SetId = SetId(5);
        let (mut failover_store, folder) = new("round");
        failover_store.write_state(&PersistedState::default()).unwrap();
        let of = |set, from, upto| DeterminantBatch { set, ..batch(from, upto) };
        let both = |from, upto| [SET, OTHER].map(|set| (set, of(set, from, upto).encode()));
        let read = |folder: &Folder| {
            let mut all = FailoverStore::open(&folder.0).unwrap().1.determinants;
            all.sort_by_key(|batches| batches.last().map(|last| last.set));
            all
        };
        failover_store.append_determinants(&both(0, 2)).unwrap();
        append(&mut failover_store, 2, 3);
        let before = fs::read(folder.0.join(ROUND)).unwrap();
        let both_from_2 = [(SET, of(SET, 3, 5).encode()), (OTHER, of(OTHER, 2, 4).encode())];
        failover_store.append_determinants(&both_from_2).unwrap();
        let first = [vec![of(SET, 0, 2), of(SET, 2, 3)], vec![of(OTHER, 0, 2)]];
        let second =
            [[&first[0][..], &[of(SET, 3, 5)]].concat(), vec![of(OTHER, 0, 2), of(OTHER, 2, 4)]];
        assert_eq!(read(&folder), second);
        // Killed after the second file was written.
        fs::write(folder.0.join(ROUND), before).unwrap();
        assert_eq!(read(&folder), first);
        // What the next coordinator appends does not make it count.
        let (mut failover_store, _) = FailoverStore::open(&folder.0).unwrap();
        failover_store.append_determinants(&both_from_2).unwrap();
        assert_eq!(read(&folder), second);
    }

    #[test]
    fn what_is_appended_is_read_in_order_and_a_cut_end_is_left_out() {
        let (mut failover_store, folder) = new("store");
        failover_store
            .write_state(&PersistedState { size: 4, ..PersistedState::default() })
            .unwrap();
        failover_store.replace_determinants(SET, &batch(0, 2).encode()).unwrap();
        append(&mut failover_store, 2, 5);
        let (_, read) = FailoverStore::open(&folder.0).unwrap();
        assert_eq!(read.state, PersistedState { size: 4, ..PersistedState::default() });
        assert_eq!(read.determinants, [vec![batch(0, 2), batch(2, 5)]]);
        let path = folder.0.join("determinants-2");
        let whole = fs::read(&path).unwrap();
        let first = framed(&batch(0, 2).encode(), 0).unwrap().len();
        for cut in first..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (_, read) = FailoverStore::open(&folder.0).unwrap();
            assert_eq!(read.determinants, [vec![batch(0, 2)]], "cut at {cut}");
            assert_eq!(fs::read(&path).unwrap().len(), first, "what is appended next is read");
        }
        failover_store.replace_determinants(SET, &batch(0, 5).encode()).unwrap();
        append(&mut failover_store, 5, 6);
        let (_, read) = FailoverStore::open(&folder.0).unwrap();
        assert_eq!(read.determinants, [vec![batch(0, 5), batch(5, 6)]]);
        failover_store.remove();
        assert!(!folder.0.exists());
    }

    #[test]
    fn what_is_damaged_is_refused_by_name() {
        let (mut failover_store, folder) = new("damaged");
        let no_state = FailoverStore::open(&folder.0).err().unwrap();
        assert!(no_state.contains("state.json"), "{no_state}");
        failover_store.write_state(&PersistedState::default()).unwrap();
        failover_store.replace_determinants(SET, &batch(0, 2).encode()).unwrap();
        append(&mut failover_store, 3, 5);
        let gap = FailoverStore::open(&folder.0).err().unwrap();
        assert!(gap.contains("determinants-2") && gap.contains("out of order"), "{gap}");
        fs::write(folder.0.join(STATE), "{").unwrap();
        assert!(FailoverStore::open(&folder.0).err().unwrap().contains("makes no sense"));
    }

    #[test]
    fn a_state_that_others_could_have_changed_is_not_loaded() {
        use std::os::unix::fs::PermissionsExt;
        let (mut failover_store, folder) = new("foreign");
        failover_store.write_state(&PersistedState::default()).unwrap();
        append(&mut failover_store, 0, 2);
        for name in [STATE, "determinants-2"] {
            let path = folder.0.join(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o606)).unwrap();
            let why = FailoverStore::open(&folder.0).err().unwrap();
            assert!(why.contains("chmod o-w") && why.contains(name), "{why}");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert!(FailoverStore::open(&folder.0).is_ok());
    }
}
