"""Become a program that ends when its parent does: `python tether.py PARENT SIGNAL USER PROGRAM [ARGUMENT...]`.

Run as a script between fork and exec, because code there in the parent itself (`preexec_fn`) can deadlock when the
parent has threads. The program keeps this process's id.
"""

import ctypes
import os
import pwd
import sys

#: From <linux/prctl.h>: the signal this process gets when the thread that started it ends.
PR_SET_PDEATHSIG = 1


def main(parent: str, death_signal: str, user: str, *command: str) -> None:
    """Replace this process by the command, as `user` unless that is empty, tied to `parent` where Linux can do it."""
    if user:
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    if sys.platform == "linux":
        # After setuid, which clears it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != int(parent):
            # The parent ended before the signal was armed: nobody would ever end this program.
            sys.exit("the parent process has ended")
    os.execv(command[0], command)  # noqa: S606 - no shell is what is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
