/* SPDX-License-Identifier: Apache-2.0 */
/* rebuilt_text.h - a kernel that stores NUMBER, as a program's own constant text */
#define TEXT_OF(number) \
	".version 7.0\n.target sm_70\n.address_size 64\n" \
	".visible .entry number(.param .u64 p)\n{\n" \
	"\t.reg .u32 %r<2>;\n\t.reg .u64 %rd<2>;\n" \
	"\tld.param.u64 %rd1, [p];\n\tmov.u32 %r1, " #number ";\n" \
	"\tst.global.u32 [%rd1], %r1;\n\tret;\n}\n"
