//! Bugs that the simulation must find.

/// What is done wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Rule 1: the record's order is lost.
    Order,
    /// Rule 2: the program's actions are not waited for.
    Tick,
    /// Rule 3: calls complete before what was applied earlier.
    CompletesEarly,
    /// Rule 3: who waits for what was told earlier goes on.
    WaitsUnheld,
    /// Rule 4: what is not recorded is applied as soon as the record is.
    NoWithholding,
    /// Rule 4: each process waits for its own replay only.
    WithholdsAlone,
    /// Operations are not kept for their epoch.
    NoEpochs,
    /// Logs drop what was received, before a checkpoint has it.
    TrimsEarly,
    /// Replies are not logged.
    RepliesNotLogged,
    /// Frames leave before the determinants that they depend on are stable.
    GateOpen,
    /// Determinants are taken after the replies that depend on them.
    RecordsLate,
    /// A message that comes twice is handed in twice.
    Duplicates,
    /// Frames of an earlier incarnation are taken.
    OldFrames,
    /// A checkpoint's counters are younger than its machine.
    TornImage,
    /// Frames leave, and more is recorded, while what was applied directly is not.
    GroupLeftOpen,
    /// A checkpoint does not know how much was applied directly, nor which locks were taken so.
    AreaLeftOut,
    /// Neighbours do not see what the target's program does.
    OldTick,
    /// In a replay operations inside the set are batched as before, although they had been applied
    /// at once.
    BatchesInReplay,
    /// Nobody says that locks have stood for long.
    LocksStand,
}
