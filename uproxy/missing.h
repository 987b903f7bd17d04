/* SPDX-License-Identifier: Apache-2.0 */
/*
 * missing.h - what is being built still: without it sessions are not saved, and that is said
 */
#ifndef MISSING_H
#define MISSING_H

#pragma weak content_check
#pragma weak content_dump
#pragma weak content_restore
#pragma weak content_channel
#pragma weak content_channel_image
#pragma weak content_arena_restore
#pragma weak observe_dump
#pragma weak observe_compare
#pragma weak store_open
#pragma weak store_close
#pragma weak store_why
#pragma weak store_read
#pragma weak store_object_begin
#pragma weak store_object_write
#pragma weak store_object_end
#pragma weak store_object_abort
#pragma weak store_object_open
#pragma weak store_reader_close
#pragma weak store_writer_open
#pragma weak store_writer_flush
#pragma weak store_writer_close
#pragma weak store_writer_stats

#endif
