/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.h - declarations of NCCL's interface up to 2.32 that an older nccl.h lacks
 *
 * The stand-in serves programs built with NCCL 2.22 … 2.32, whichever header it is built with. So
 * sources that include nccl.h get this file, which includes the installed one (2.22 or newer) and
 * declares what came later. Where both declare a function, the compiler checks that they agree.
 *
 * Structs that grow have no layout here: the stand-in reads them by their size and its own layout
 * (libintercept/nccl/config.c). Types of the device's interface (nccl_device.h) are incomplete, as
 * the stand-in refuses what uses them.
 */
#include_next <nccl.h>

#include <stdint.h>

/* A macro of no effect in the headers of 2.30 and newer where NCCL's own build does not define its system. */
#undef ncclResetDebugInit
#undef pncclResetDebugInit

#ifndef SV_NEWER_NCCL_H
#define SV_NEWER_NCCL_H

#if NCCL_VERSION_CODE < 22200
#error "NCCL 2.22 or newer is needed"
#endif

/* ---------------------------------------------------------------------------- since 2.23, 2.25 */

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
				      ncclUniqueId *commIds, ncclConfig_t *config);
void ncclResetDebugInit(void);

/* ---------------------------------------------------------------------------- since 2.27 */

#if NCCL_VERSION_CODE < 22700
typedef struct ncclWindow *ncclWindow_t;
#endif

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
			    ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
				    int winFlags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* ---------------------------------------------------------------------------- since 2.28 */

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
			  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
			int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count,
			 ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/* The device's interface: nccl_device.h. */
struct ncclTeam {
	int nRanks, rank, stride;
};
struct ncclCommProperties;
struct ncclDevComm;
struct ncclDevCommRequirements;
struct ncclDevResourceRequirements;

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, struct ncclCommProperties *props);
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements *reqs,
			       struct ncclDevComm *outDevComm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const struct ncclDevComm *devComm);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, void *multimem,
					  void **outPtr);
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
				     void **outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);
ncclResult_t ncclLsaBarrierCreateRequirement(struct ncclTeam team, int nBarriers, void *outHandle,
					     struct ncclDevResourceRequirements *outReq);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, struct ncclTeam team, int nBarriers,
					     void *outHandle,
					     struct ncclDevResourceRequirements *outReq);
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, void *outHandle,
					struct ncclDevResourceRequirements *outReq);
ncclResult_t ncclGinOutboxCreateRequirement(int nBlocks, int size_log2, void *outHandle,
					    struct ncclDevResourceRequirements *outReq);
ncclResult_t ncclGinInboxA2ACreateRequirement(struct ncclTeam peers, int nBlocks, int size_log2,
					      void *outHandle,
					      struct ncclDevResourceRequirements *outReq);
struct ncclTeam ncclTeamWorld(ncclComm_t comm);
struct ncclTeam ncclTeamLsa(ncclComm_t comm);
struct ncclTeam ncclTeamRail(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, struct ncclTeam team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, struct ncclTeam team, int rank);

/* ---------------------------------------------------------------------------- since 2.29 */

#if NCCL_VERSION_CODE < 22900
typedef int ncclCommMemStat_t;
typedef struct {
	int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;
#endif

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
			  ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
			   ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
			   unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
			cudaStream_t stream);
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
			    cudaStream_t stream);
void ncclResetDebugInitInternal(void);

/* ---------------------------------------------------------------------------- since 2.30 */

#if NCCL_VERSION_CODE < 23000
typedef struct ncclParamHandle *ncclParamHandle_t;
#endif

ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t *out);
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out);
ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen);
ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *tableLen);
void ncclParamDumpAll(void);

/* ---------------------------------------------------------------------------- since 2.31 */

#if NCCL_VERSION_CODE < 23100
typedef struct ncclCollConfig ncclCollConfig_t;
#endif

ncclResult_t ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count,
				 ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
				 cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count,
				 ncclDataType_t datatype, int root, ncclComm_t comm,
				 cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count,
			      ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
			      cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount,
				 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
				 const ncclCollConfig_t *config);
ncclResult_t ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount,
				     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
				     cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count,
				ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
				const ncclCollConfig_t *config);
ncclResult_t ncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count,
			      ncclDataType_t datatype, int root, ncclComm_t comm,
			      cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count,
			       ncclDataType_t datatype, int root, ncclComm_t comm,
			       cudaStream_t stream, const ncclCollConfig_t *config);

ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, void *leId,
					 size_t *leOffset);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peerCft,
				    struct ncclTeam cftTeam, void *leId, size_t *leOffset);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peerWorld, void *leId,
				     size_t *leOffset);
struct ncclTeam ncclTeamCft(ncclComm_t comm, int mode);
struct ncclTeam ncclTeamCftMultimem(ncclComm_t comm);

/* ---------------------------------------------------------------------------- since 2.32 */

#if NCCL_VERSION_CODE < 23200
typedef struct ncclEncryptionConfig ncclEncryptionConfig_t;
#endif

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);

#endif
