! Each rank reads and writes records of files of its own, one of which has no name, and goes back in
! one that is read in sequence. usage: file_contents_fortran ITERATIONS FOLDER GATE (see gate.h)
program file_contents_fortran
  use mpi
  implicit none
  integer, parameter :: records = 64
  integer(8) :: memory(records), found, other
  integer :: me, np, ierr, i, k, b, iterations, limit, nameless, named, last
  integer :: status(MPI_STATUS_SIZE)
  real(8) :: value, from, total
  character(len=32) :: text
  character(len=1024) :: folder, gate, path
  interface
    integer(c_int) function usleep(microseconds) bind(c)
      use iso_c_binding, only: c_int
      integer(c_int), value :: microseconds
    end function
  end interface
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, np, ierr)
  call get_command_argument(1, text)
  read (text, *) iterations
  call get_command_argument(2, folder)
  call get_command_argument(3, gate)
  limit = 0
  write (path, '(a,a,i0,a)') trim(folder), '/rank-', me, '.direct'
  open (newunit=nameless, status='scratch', access='direct', form='unformatted', recl=8)
  open (newunit=named, file=trim(path), status='replace', access='direct', form='unformatted', &
        recl=8)
  write (path, '(a,a,i0,a)') trim(folder), '/rank-', me, '.sequence'
  memory = 0
  do i = 1, records
    write (nameless, rec=i) memory(i)
    write (named, rec=i) memory(i)
  end do
  value = me
  do k = 0, iterations - 1
    do while (k >= limit)
      call look_at_gate()
    end do
    call MPI_Sendrecv(value, 1, MPI_DOUBLE_PRECISION, mod(me + 1, np), 0, from, 1, &
         MPI_DOUBLE_PRECISION, mod(me + np - 1, np), 0, MPI_COMM_WORLD, status, ierr)
    b = mod(k, records) + 1
    read (nameless, rec=b) found
    read (named, rec=b) other
    if (found /= memory(b) .or. other /= memory(b)) call wrong('a record')
    memory(b) = mod(memory(b) * 5 + k, 1000003_8)
    write (nameless, rec=b) memory(b)
    write (named, rec=b) memory(b)
    if (mod(k, 10) == 0) then
      if (k > 0) then
        open (newunit=i, file=trim(path), status='old', action='read')
        read (i, *) last
        close (i)
        if (last /= k - 10) call wrong('the last number')
      end if
      open (newunit=i, file=trim(path), status='replace', action='write')
      write (i, *) k
      close (i)
    end if
    value = 0.5d0 * (value + from) + memory(b)
    i = usleep(500) ! a failure comes in the middle
  end do
  ! In order of ranks, so that rounding is the same in every run.
  total = 0
  if (me > 0) call MPI_Recv(total, 1, MPI_DOUBLE_PRECISION, me - 1, 3, MPI_COMM_WORLD, status, ierr)
  total = total + value
  if (me < np - 1) call MPI_Send(total, 1, MPI_DOUBLE_PRECISION, me + 1, 3, MPI_COMM_WORLD, ierr)
  if (me == np - 1) write (*, '(a,z16.16)') 'HASH ', total
  call MPI_Finalize(ierr)
contains
  subroutine wrong(what)
    character(len=*), intent(in) :: what
    write (0, '(a,i0,a,i0,2a)') 'rank ', me, ', iteration ', k, ': ', what
    call MPI_Abort(MPI_COMM_WORLD, 3, ierr)
  end subroutine
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
