# SPDX-License-Identifier: Apache-2.0
# apt.sh - Debian's packages through private lists: the system's own sources and lists stay as
# they are. Sourced by the steps of setup; the current directory is the top of the tree.
#
# A list is a folder build/apt/NAME with its own sources, package lists and cache. It reads the
# system's dpkg status, unless it has a status file of its own.

APT=$PWD/build/apt
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
SECURITY_MIRROR=${DEBIAN_SECURITY_MIRROR:-http://deb.debian.org/debian-security}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

die()
{
	echo "setup: $*" >&2
	exit 1
}

say()
{
	echo "setup: $*"
}

# Runs a command as root: as we are, or by `sudo -n`.
as_root()
{
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif sudo -n true 2>/dev/null; then
		sudo -n "$@"
	else
		die "needs root to run '$1': run as root, or allow this user 'sudo -n'"
	fi
}

# apt_list NAME SUITE...: makes the private list NAME of these suites of Debian ($COMPONENTS, or
# main); a suite that ends in -security is read from the security archive.
apt_list()
{
	local name=$1 dir=$APT/$1 suite mirror
	shift
	mkdir -p "$dir"/{lists/partial,cache/archives/partial,debs}
	for suite; do
		mirror=$MIRROR
		case $suite in *-security) mirror=$SECURITY_MIRROR ;; esac
		echo "deb [arch=amd64 signed-by=$KEYRING] $mirror $suite ${COMPONENTS:-main}"
	done >"$dir/sources.list.new"
	# Lists that are younger than a day are taken as they are.
	if cmp -s "$dir/sources.list.new" "$dir/sources.list" &&
	   [ -n "$(find "$dir/updated" -mmin -1440 2>/dev/null)" ]; then
		return
	fi
	mv "$dir/sources.list.new" "$dir/sources.list"
	say "reading Debian's package lists: $*"
	apt_get "$name" update >"$dir/update.log" 2>&1 || {
		cat "$dir/update.log" >&2
		die "Debian's package lists ($*) cannot be read from $MIRROR"
	}
	touch "$dir/updated"
}

# apt_options NAME: sets opts to what makes apt use the private list NAME and nothing else.
apt_options()
{
	local dir=$APT/$1

	opts=(-q -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null
	      -o Dir::Etc::Preferences="$dir/preferences" -o Dir::Etc::PreferencesParts=/dev/null
	      -o Dir::State::Lists="$dir/lists" -o Dir::Cache="$dir/cache"
	      -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3
	      -o Acquire::Check-Valid-Until=false)
	if [ -e "$dir/status" ]; then
		opts+=(-o Dir::State::Status="$dir/status")
	fi
}

# apt_get NAME ARG...: apt-get on the private list NAME. Needs no root but for `install`.
apt_get()
{
	local opts name=$1
	shift
	apt_options "$name"
	DEBIAN_FRONTEND=noninteractive apt-get "${opts[@]}" "$@"
}

apt_cache()
{
	local opts name=$1
	shift
	apt_options "$name"
	apt-cache "${opts[@]}" "$@"
}

# apt_deb NAME PACKAGE[=VERSION]: downloads a package and prints the path of its file.
apt_deb()
{
	local dir=$APT/$1 uri file
	uri=$(apt_get "$1" download --print-uris "$2" 2>/dev/null) ||
		die "no package $2 in $(grep -o ' [a-z-]* main' "$dir/sources.list" | xargs)"
	file=$(awk '{ print $2; exit }' <<<"$uri")
	if [ ! -e "$dir/debs/$file" ]; then
		(cd "$dir/debs" && apt_get "$1" download "$2" >/dev/null) ||
			die "cannot download $2"
	fi
	echo "$dir/debs/$file"
}

# The list `debian`: the release of this system itself. Security updates too, which a minimal
# system's own sources may lack and which have the 6.12 kernel of Debian 12.
debian_list()
{
	case $ID-$RELEASE in
	debian-12) apt_list debian bookworm bookworm-security ;;
	debian-13) apt_list debian trixie trixie-security ;;
	*) die "needs Debian 12 or 13; this is ${PRETTY_NAME:-unknown}" ;;
	esac
}

# installed PACKAGE...: whether all of them are.
installed()
{
	local states
	states=$(dpkg-query -W -f '${db:Status-Status}\n' "$@" 2>/dev/null) || return 1
	! grep -qvx installed <<<"$states"
}

# prefer NAME security|release: where packages other than the kernel's come from when both the
# release and its security updates have them. Of backports, the kernel's headers are wanted.
prefer()
{
	{
		printf 'Package: %s\nPin: release n=trixie-backports\nPin-Priority: 995\n\n' \
			'linux-headers-* linux-kbuild-* linux-compiler-*'
		[ "$2" = security ] ||
			printf 'Package: %s\nPin: release l=Debian-Security\nPin-Priority: %s\n\n' \
				'linux-*' 990 '*' 400
	} >"$APT/$1/preferences"
}

# apt_install NAME PACKAGE...: installs what is missing and removes nothing. It upgrades nothing
# either, unless this release itself leaves no other way, and then says what.
apt_install()
{
	local name=$1 package plan upgrades missing=()
	shift
	for package; do
		installed "$package" || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	prefer "$name" release
	if ! plan=$(apt_plan "$name" "${missing[@]}") || grep -q '^Inst [^ ]* \[' <<<"$plan"; then
		prefer "$name" security
		plan=$(apt_plan "$name" "${missing[@]}") || {
			echo "$plan" >&2
			die "cannot install: ${missing[*]}"
		}
	fi
	if grep '^Remv ' <<<"$plan" >&2; then
		die "installing ${missing[*]} would remove the packages above: nothing was done"
	fi
	say "installing $(grep -c '^Inst ' <<<"$plan") Debian packages:" \
		"${missing[*]} and what they need"
	upgrades=$(sed -n 's/^Inst \([^ ]*\) \[.*/\1/p' <<<"$plan" | xargs)
	[ -z "$upgrades" ] || say "upgrading for them: $upgrades"
	as_root_apt "$name" "${missing[@]}" >"$APT/install.log" 2>&1 </dev/null || {
		tail -40 "$APT/install.log" >&2
		die "apt-get install failed; all of it is in $APT/install.log"
	}
}

apt_plan()
{
	local name=$1
	shift
	apt_get "$name" -s --no-install-recommends install "$@" 2>&1
}

as_root_apt()
{
	local opts name=$1
	shift
	apt_options "$name"
	as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get "${opts[@]}" -y \
		--no-install-recommends -o Dpkg::Options::=--force-confold install "$@"
}
