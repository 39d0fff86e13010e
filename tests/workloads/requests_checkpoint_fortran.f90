! requests_checkpoint.c in Fortran: requests a checkpoint, fails in its first incarnation, and prints
! the checkpoint in its second.
program requests_checkpoint_fortran
  use mpi
  implicit none
  integer :: me, code, restarts, ierr
  integer(8) :: checkpoint
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
  code = 0
  checkpoint = 0
  ! 1 (all) + 2 (wait)
  if (me == 1) call mpix_correlated_checkpoint(3, checkpoint, code)
  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  call mpix_correlated_restarts(restarts)
  if (restarts == 0) call MPI_Abort(MPI_COMM_WORLD, 9, ierr)
  if (me == 1) then
    write (*, '(a,i0,1x,i0,1x,i0)') 'HASH ', code, checkpoint, restarts
    flush (6)
  end if
  call MPI_Finalize(ierr)
end program
