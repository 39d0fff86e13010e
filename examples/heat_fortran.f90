! heat.c in Fortran. usage: heat_fortran [STEPS]
program heat
  use mpi
  implicit none
  integer, parameter :: cells = 1000
  double precision :: now(0:cells + 1), next(0:cells + 1), total
  integer :: rank, ranks, left, right, step, steps, i, ierr
  character(len=32) :: argument

  steps = 50000
  if (command_argument_count() > 0) then
    call get_command_argument(1, argument)
    read (argument, *) steps
  end if

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
  right = merge(rank + 1, MPI_PROC_NULL, rank < ranks - 1)

  now = 0
  do step = 1, steps
    call MPI_Sendrecv(now(1), 1, MPI_DOUBLE_PRECISION, left, 0, &
                      now(cells + 1), 1, MPI_DOUBLE_PRECISION, right, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
    call MPI_Sendrecv(now(cells), 1, MPI_DOUBLE_PRECISION, right, 1, &
                      now(0), 1, MPI_DOUBLE_PRECISION, left, 1, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
    if (rank == 0) now(0) = 1   ! the rod is heated at one end
    do i = 1, cells
      next(i) = now(i) + 0.25d0 * (now(i - 1) - 2 * now(i) + now(i + 1))
    end do
    now(1:cells) = next(1:cells)
  end do

  call MPI_Reduce(sum(now(1:cells)), total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, 0, &
                  MPI_COMM_WORLD, ierr)
  if (rank == 0) write (*, '(a,i0,a,f0.6)') 'heat in the rod after ', steps, ' steps: ', total
  call MPI_Finalize(ierr)
end program
