# SPDX-License-Identifier: Apache-2.0
# flows.pl - checks the collectives of a trace on stdin, and prints a line for each operation:
#
#   ORDER KIND RANKS last RANK flow EVENTS
#
# Each flow begins once and ends once, in order of time, and within slices; slices of a track nest.
use strict;
use warnings;
use JSON::PP;

local $/;
my $events = decode_json(<STDIN>)->{traceEvents};
my (%track, %op, %flow);
my $eps = 0.0015;

for my $e (grep { ($_->{cat} // "") eq "collective" } @$events) {
	die "a time before the trace: $e->{ts}\n" if $e->{ts} < 0;
	if ($e->{ph} eq "X") {
		die "a slice of $e->{dur}\n" if $e->{dur} < 0;
		push @{$track{"$e->{pid} $e->{tid}"}}, $e;
		push @{$op{$e->{args}{operation}}}, $e if $e->{args};
	} else {
		push @{$flow{$e->{id}}}, $e;
	}
}
for my $t (values %track) {
	my @open;
	for my $e (sort { $a->{ts} <=> $b->{ts} || $b->{dur} <=> $a->{dur} } @$t) {
		pop @open while @open && $open[-1] <= $e->{ts} + $eps;
		my $end = $e->{ts} + $e->{dur};
		die "slices overlap: $e->{name} at $e->{ts}\n" if @open && $end > $open[-1] + $eps;
		push @open, $end;
	}
}
for my $id (keys %flow) {
	my @f = @{$flow{$id}};
	my $how = join "", map { $_->{ph} } @f;
	die "flow $id is $how\n" if $how !~ /^st*f$/;
	for my $i (0 .. $#f) {
		die "flow $id goes back in time\n" if $i && $f[$i]{ts} < $f[$i - 1]{ts};
		die "flow $id has an end without a slice\n" unless grep { $_->{ts} <= $f[$i]{ts} &&
			$f[$i]{ts} <= $_->{ts} + $_->{dur} + $eps } @{$track{"$f[$i]{pid} $f[$i]{tid}"}};
	}
	die "flow $id is of no operation\n" unless $op{$id};
}
for my $order (sort { $a <=> $b } keys %op) {
	my @e = sort { $a->{ts} <=> $b->{ts} } @{$op{$order}};
	my $flow = $flow{$order} ? @{$flow{$order}} : 0;
	my ($last) = map { $_->{args}{last} } @e;
	die "operation $order: rank $e[-1]{args}{rank} came last, not $last\n" if $e[-1]{args}{rank} != $last;
	print "$order $e[0]{name} ", scalar @e, " last $last flow $flow\n";
}
