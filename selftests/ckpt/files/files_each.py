# SPDX-License-Identifier: Apache-2.0
# files_each.py - writes files by everything that python has for it; threads and processes too.

import ctypes, io, mmap, multiprocessing, os, pathlib, pickle, shelve, shutil, socket, sqlite3
import subprocess, tempfile, threading, zipfile, gzip, tarfile, logging, csv, json

def work(name):
    with open(name, "w") as f:
        f.write("text")
    os.replace(name, name + ".new")
    pathlib.Path(name + ".dir").mkdir(parents=True)
    (pathlib.Path(name + ".dir") / "x").write_bytes(b"x")

def main():
    open("open.w", "w").write("x")
    open("open.x", "x").close()
    open("open.a", "ab", buffering=0).write(b"x")
    open("open.w", "r+b").write(b"y")
    io.FileIO("fileio", "w").write(b"x")
    fd = os.open("os.open", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8192)
    m = mmap.mmap(fd, 8192)
    os.close(fd)
    m[5000] = 7
    m.flush()
    m.close()
    d = os.open(".", os.O_RDONLY)
    os.mkdir("at", dir_fd=d)
    os.close(os.open("at/x", os.O_CREAT | os.O_WRONLY, dir_fd=d))
    os.rename("at/x", "at/y", src_dir_fd=d, dst_dir_fd=d)
    os.symlink("y", "at/l", dir_fd=d)
    os.link("at/y", "at/h", src_dir_fd=d, dst_dir_fd=d)
    os.utime("at/y", ns=(5, 7), dir_fd=d)
    os.chmod("at/y", 0o600, dir_fd=d)
    os.unlink("at/h", dir_fd=d)
    os.truncate("at/y", 100)
    os.makedirs("a/b/c", exist_ok=True)
    os.makedirs("a/b/c", exist_ok=True)
    os.mkfifo("fifo")
    os.removedirs("a/b/c")
    shutil.copytree("at", "at2", symlinks=True)
    shutil.move("at2", "at3")
    shutil.rmtree("at3")
    pathlib.Path("p").touch()
    pathlib.Path("p").rename("q")
    pathlib.Path("q").unlink()
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as f:
        f.write(b"x")
    with tempfile.TemporaryDirectory(dir=".") as t:
        open(os.path.join(t, "x"), "w").close()
    with tempfile.TemporaryFile(dir=".") as f:
        f.write(b"x")
    pickle.dump([1], open("pickle", "wb"))
    json.dump([1], open("json", "w"))
    csv.writer(open("csv", "w")).writerow([1])
    with shelve.open("shelf") as s:
        s["a"] = 1
    with zipfile.ZipFile("zip", "w") as z:
        z.writestr("a", "b")
    zipfile.ZipFile("zip").extractall("unzipped")
    gzip.open("gz", "wb").write(b"x")
    with tarfile.open("tar", "w") as t:
        t.add("unzipped")
    db = sqlite3.connect("db")
    db.execute("create table t(x)")
    db.executemany("insert into t values(?)", [(i,) for i in range(1000)])
    db.commit()
    db.execute("vacuum")
    db.close()
    log = logging.FileHandler("log")
    log.emit(logging.LogRecord("a", 1, "a", 1, "text", None, None))
    log.close()
    libc = ctypes.CDLL(None)
    libc.fclose(ctypes.c_void_p(ctypes.cast(libc.fopen, ctypes.CFUNCTYPE(
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p))(b"ctypes", b"w")))
    threads = [threading.Thread(target=work, args=("thread%d" % i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for how in ("fork", "spawn"):
        c = multiprocessing.get_context(how)
        p = [c.Process(target=os.mkdir, args=("%s%d" % (how, i),)) for i in range(3)]
        [q.start() for q in p]
        [q.join() for q in p]
        assert not any(q.exitcode for q in p)
    subprocess.run(["sh", "-c", "echo x >by_sh"], check=True)
    subprocess.run(["echo", "x"], stdout=open("by_echo", "w"), check=True)
    os.chdir("at")
    open("behind_chdir", "w").close()
    os.rename("../at", "../moved")
    open("behind_rename", "w").close()

# A spawned process reads this file again.
if __name__ == "__main__":
    main()
