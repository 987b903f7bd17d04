// SPDX-License-Identifier: Apache-2.0
/* rebuilt_plug.c - a library with a kernel; two builds of it differ in one digit */
#include "rebuilt_text.h"

#define TEXT(number) TEXT_OF(number)

const char plug_text[] = TEXT(NUMBER);
