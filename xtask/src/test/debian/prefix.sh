state > before
"$XTASK" install --prefix "$PWD/mine" > said
environment=$(sed -n 's/^before mpirun: //p' said)
eval "$environment"
mpirun $MPIRUN_OPTIONS --mca pml v --mca vprotocol correlated -n 2 "$RING" > out 2> complained
grep -qx OK out
[ ! -s complained ]
survives
"$XTASK" uninstall --prefix "$PWD/mine"
state > after
cmp before after || { diff before after; exit 1; }
echo passed
