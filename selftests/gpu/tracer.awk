# SPDX-License-Identifier: Apache-2.0
# tracer.awk - from prototypes, one a line, and args() of args.awk: tracer_calls.c

BEGIN {
	print "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <cudaProfiler.h>\n"
	print "#include \"tracer.h\"\n"
}
{
	decl = $0
	sub(/;$/, "", decl)
	name = $2
	sub(/\(.*/, "", name)
	if (name ~ /^cuGetProcAddress(_v2)?$/)
		next
	p = decl
	sub(/^[^(]*\(/, "", p)
	sub(/\)$/, "", p)
	print decl
	print "{\n\t__typeof__(&" name ") real_ = tracer_real(" n + 0 ");\n"
	print "\treturn tracer_line(" n + 0 ", real_ ? real_(" args(p) ") : CUDA_ERROR_NOT_FOUND);\n}\n"
	names[n++] = name
}
END {
	print "struct tracer_row tracer_rows[] = {"
	for (i = 0; i < n; i++)
		print "\t{ \"" names[i] "\", " names[i] ", 0 },"
	print "\t{ 0 }\n};"
}
