//! System calls that fail.

/// From now on these calls of this thread fail with these errors.
pub(crate) fn fail_calls(calls: &[(libc::c_long, libc::c_int)]) {
    const fn statement(code: u32, jump: (u8, u8), k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt: jump.0, jf: jump.1, k }
    }
    // The number of the call is first in the data.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0)];
    for (call, error) in calls {
        let is_it = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let fails = libc::SECCOMP_RET_ERRNO | *error as u32;
        program.push(statement(is_it, (0, 1), *call as u32));
        program.push(statement(libc::BPF_RET | libc::BPF_K, (0, 0), fails));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the first call takes no memory, the second reads the program, which is there until it returns. A thread
    // may always limit its own calls.
    let outcome = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0)
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}
