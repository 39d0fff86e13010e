! Jacobi's method on a strip for each process. usage: fortran_hash ITERATIONS [GATE] (see gate.h)
program fortran_hash
  use mpi
  implicit none
  integer, parameter :: n = 256, m = 64
  real(8) :: a(n, 0:m+1), b(n, m), total, part
  integer :: me, np, ierr, i, j, k, up, down, iterations, limit
  character(len=32) :: text
  character(len=1024) :: gate
  integer :: status(MPI_STATUS_SIZE)
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, np, ierr)
  iterations = 2000
  if (command_argument_count() > 0) then
    call get_command_argument(1, text)
    read (text, *) iterations
  end if
  limit = iterations
  if (command_argument_count() > 1) then
    call get_command_argument(2, gate)
    limit = 0
  end if
  up = merge(MPI_PROC_NULL, me + 1, me == np - 1)
  down = merge(MPI_PROC_NULL, me - 1, me == 0)
  a = 0
  do j = 1, m
    do i = 1, n
      a(i, j) = mod(i * 31 + (j + me * m) * 17, 101)
    end do
  end do
  do k = 1, iterations
    do while (k > limit)
      call look_at_gate()
    end do
    call MPI_Sendrecv(a(:, m), n, MPI_DOUBLE_PRECISION, up, 1, a(:, 0), n, &
         MPI_DOUBLE_PRECISION, down, 1, MPI_COMM_WORLD, status, ierr)
    call MPI_Sendrecv(a(:, 1), n, MPI_DOUBLE_PRECISION, down, 2, a(:, m+1), n, &
         MPI_DOUBLE_PRECISION, up, 2, MPI_COMM_WORLD, status, ierr)
    do j = 1, m
      do i = 2, n - 1
        b(i, j) = 0.25d0 * (a(i-1, j) + a(i+1, j) + a(i, j-1) + a(i, j+1))
      end do
    end do
    a(2:n-1, 1:m) = b(2:n-1, 1:m)
  end do
  part = 0
  do j = 1, m
    do i = 1, n
      part = part + a(i, j) * mod(i * j, 97)
    end do
  end do
  ! In order of ranks, so that rounding is the same in every run.
  total = 0
  if (me > 0) call MPI_Recv(total, 1, MPI_DOUBLE_PRECISION, me - 1, 3, MPI_COMM_WORLD, status, ierr)
  total = total + part
  if (me < np - 1) call MPI_Send(total, 1, MPI_DOUBLE_PRECISION, me + 1, 3, MPI_COMM_WORLD, ierr)
  if (me == np - 1) write (*, '(a,z16.16)') 'HASH ', total
  call MPI_Finalize(ierr)
contains
  ! Iterations that may be gone through now: rank 0 reads the gate, all know.
  subroutine look_at_gate()
    integer :: file, problem
    if (me == 0) then
      open (newunit=file, file=trim(gate), status='old', action='read', iostat=problem)
      if (problem == 0) then
        read (file, *, iostat=problem) limit
        close (file)
      end if
    end if
    call MPI_Bcast(limit, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, ierr)
  end subroutine
end program
