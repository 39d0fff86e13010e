state > before
"$XTASK" install
is_installed
survives
# Twice is once.
cp ~/.pmix/mca-params.conf parameters
"$XTASK" install --user
cmp ~/.pmix/mca-params.conf parameters
"$XTASK" uninstall --user
state > after
cmp before after || { diff before after; exit 1; }
if mpirun $MPIRUN_OPTIONS --mca pml v --mca vprotocol correlated -n 2 "$RING" 2> said; then
    echo 'a job ran over a component that is gone'
    exit 1
fi
echo passed
