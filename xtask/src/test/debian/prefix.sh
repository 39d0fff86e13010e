state > before
"$XTASK" install --prefix "$PWD/mine" > said
options=$(sed -n 's/^tell Open MPI: //p' said)
mpirun $MPIRUN_OPTIONS $options --mca pml v --mca vprotocol correlated -n 2 "$RING" \
    > out 2> complained
grep -qx OK out
[ ! -s complained ]
"$XTASK" uninstall --prefix "$PWD/mine"
state > after
cmp before after || { diff before after; exit 1; }
echo passed
